from __future__ import annotations

from typing import Any

import pytest

from ddbench.errors import ConfigError
from experiments.hosts import hosts_of
from runners.hosts import HostConfig
from runners.hosts.config import environment_arguments

SSH = {"name": "there", "kind": "ssh", "address": "there"}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"name": "a b"}, "host.name"),
        ({"address": None}, "host.address"),
        ({"address": "-oProxyCommand=touch /tmp/x"}, "host.address"),
        ({"address": "a;b"}, "host.address"),
        ({"user": "-l root"}, "host.user"),
        ({"user": "$(id)"}, "host.user"),
        ({"port": 0}, "host.port"),
        ({"port": 65536}, "host.port"),
        ({"python": ""}, "host.python"),
        ({"python": "-c"}, "host.python"),
        ({"workdir": "a\nb"}, "host.workdir"),
        ({"workdir": "work"}, "host.workdir"),
        ({"key": 'a"b'}, "host.key"),
        ({"pythons": {"foo": "x"}}, "host.pythons.foo"),
        ({"pythons": {"vllm": 3}}, "host.pythons.vllm"),
        ({"pythons": {"vllm": ""}}, "host.pythons.vllm"),
        ({"gpus": ()}, "host.gpus"),
        ({"gpus": (0, 0)}, "host.gpus"),
        ({"gpus": (-1,)}, "host.gpus"),
        ({"power_limit_w": 0.0}, "host.power_limit_w"),
        ({"memory_clock_mhz": -1}, "host.memory_clock_mhz"),
        ({"bf16_tflops": 0.0}, "host.bf16_tflops"),
        ({"memory_bytes_per_s": 0}, "host.memory_bytes_per_s"),
        ({"connect_timeout_s": 0.0}, "host.connect_timeout_s"),
        ({"kind": "local", "address": "there"}, "host.address"),
        ({"kind": "local", "address": None, "port": 22}, "host.port"),
        ({"member": "another"}, "host.member"),
    ],
)
def test_what_a_host_cannot_be(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        hosts_of(HostConfig(**{**SSH, **changes}))
    assert error.value.key == key
    assert "\n" not in str(error.value) or key == "host.workdir"


def test_a_host_is_read_as_it_is_written() -> None:
    host = HostConfig(**SSH, user="me", pythons={"vllm": "~/v/bin/python"}, memory_bytes_per_s=1_792_000_000_000)
    assert host.destination == "me@there"
    assert host.bandwidth_gb_s == 1792.0
    assert host.engine_python("vllm") == "~/v/bin/python"
    assert host.engine_python("sglang") is None
    assert hosts_of(host) == (host,)


def test_a_list_of_hosts_shares_what_stands_around_it() -> None:
    entries = ({"name": "a", "address": "10.0.0.1", "gpus": [0, 1], "pythons": {"vllm": "/v"}}, "b.example")
    around = HostConfig(**{**SSH, "address": None}, user="me", sku="Max-Q", hosts=entries)
    first, second = hosts_of(around)
    assert (first.name, first.address, first.gpus, first.user, first.sku) == ("a", "10.0.0.1", (0, 1), "me", "Max-Q")
    assert (second.name, second.address, second.gpus, second.user) == ("b.example", "b.example", None, "me")
    assert second.hosts == ()


@pytest.mark.parametrize(
    ("entries", "key"),
    [
        (({"address": "a", "prot": 22},), r"host.hosts[0].prot"),
        (("a", {"address": "b", "port": "22"}), r"host.hosts[1].port"),
        (("a", {"address": "b", "port": 0}), r"host.hosts[1].port"),
        (("a", "a"), r"host.hosts[1].name"),
        ((3,), r"host.hosts[0]"),
        (({"address": "a", "hosts": ["b"]},), r"host.hosts[0].hosts"),
        (({"name": "a"},), r"host.hosts[0].address"),
    ],
)
def test_what_a_list_of_hosts_cannot_be(entries: tuple[Any, ...], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        hosts_of(HostConfig(**{**SSH, "address": None}, hosts=entries))
    assert error.value.key == key


def test_variables_as_arguments() -> None:
    assert environment_arguments({"A": "x y", "B": None}) == ["-u", "B", "A=x y"]
