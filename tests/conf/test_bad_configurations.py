"""Configurations that cannot be, each refused in one line that names key, value and what is allowed, before anything
starts. In this process, through the functions that the command line itself goes through; some of them through a real
command line are in ``tests/experiments/test_door.py``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import ddbench.__main__ as door

SERVER = "engine=vllm "
SSH = "host=pro6000 "
TOKEN = "hf_plantedTOKEN"
SECONDS = "seconds > 0"
INTEGER = "an integer >= 1"

# Overrides, how the line begins after "error: ", and what it must say is allowed.
REFUSED = [
    # keys and groups
    ("sweep.widht=[3]", "sweep.widht='[3]': unknown key", "did you mean sweep.width"),
    ("widht=3", "widht='3': unknown key", "sweep"),
    ("+extra=3", "extra=3: unknown key", "sweep"),
    ("~sweep", "sweep=None", "this setting is required"),
    ("~engine.device", "engine.device=None", "this setting is required"),
    ("faults=null", "faults=None", "a group of settings"),
    ("model=gpt5", "model='gpt5'", "qwen3_8b, qwen3_coder_30b_a3b, tiny"),
    ("engine=tgi", "engine='tgi'", "reference, sglang, vllm"),
    ("experiment=nope", "experiment='nope'", "ddtree_sweep"),
    ("strategy=medusa", "strategy='medusa'", "ddtree"),
    ("workloads=[]", "workloads=[]", "at least one, or null"),
    ("workloads=3", "workloads=3", "a list of names"),
    ("workloads=[gsm8k,gsm8k]", "workloads=['gsm8k', 'gsm8k']", "'gsm8k' comes 2 times"),
    ("workloads={gsm8k:1}", "workloads.gsm8k=1", "a group of settings"),
    ("workload=[gsm8k,mbpp]", "workload='[gsm8k,mbpp]'", "workloads=[gsm8k,mbpp]"),
    ("workload=c4", "workload='c4'", "gsm8k"),
    ("load=burst", "load='burst'", "closed"),
    ("host=moon", "host='moon'", "pro6000"),
    ("tracking=mlflow", "tracking='mlflow'", "wandb"),
    ("report=long", "report='long'", "default"),
    ("sweep.width=[1", "'sweep.width=[1': not a Hydra override", "key=value"),
    ("_target_=experiments.nothing.run", "_target_='experiments.nothing.run'", "package.module.function"),
    ("_target_=os.system", "_target_='os.system'", "a function of an experiment"),
    ("_target_=experiments.sweep", "_target_='experiments.sweep'", "package.module.function"),
    ("_target_=null", "_target_=None", "package.module.function"),
    # the run
    ("seed=-1", "seed=-1", "0 to 2147483647"),
    ("seed=2147483648", "seed=2147483648", "0 to 2147483647"),
    ("seed=1.5", "seed=1.5", "an integer"),
    ("seed=true", "seed=True", "an integer"),
    ("strict=maybe", "strict='maybe'", "true or false"),
    ("name=../x", "name='../x'", "letters, digits"),
    ("run_id=../elsewhere", "run_id='../elsewhere'", "letters, digits"),
    ("output_dir=null", "output_dir=None", "a text"),
    ("output_dir=''", "output_dir=''", "a folder"),
    # the grid
    ("sweep.strategy=[medusa]", "sweep.strategy='medusa'", "autoregressive, dflash, eagle, ddtree"),
    ("sweep.strategy=[]", "sweep.strategy=[]", "at least one value"),
    ("sweep.strategy=null", "sweep.strategy=None", "a text"),
    ("sweep.width=[0]", "sweep.width=0", "or null for no limit"),
    ("sweep.width=0", "sweep.width=0", "or null for no limit"),
    ("sweep.width=[two]", "sweep.width='two'", "an integer, or null"),
    ("sweep.depth=[-3]", "sweep.depth=-3", "or null for the whole block"),
    ("sweep.nodes=[0]", "sweep.nodes=0", INTEGER),
    ("sweep.nodes=[1.5]", "sweep.nodes=1.5", "an integer"),
    ("sweep.nodes=[null]", "sweep.nodes=None", "an integer"),
    ("sweep.nodes=[]", "sweep.nodes=[]", "at least one value"),
    ("sweep.width=[99999999999999999999]", "sweep.width=99999999999999999999", "less than 64 bits"),
    ("sweep.batch_size=[-1]", "sweep.batch_size=-1", INTEGER),
    ("sweep.batch_size=[true]", "sweep.batch_size=True", "an integer"),
    ("sweep.temperature=[-0.5]", "sweep.temperature=-0.5", "0.001 to 1000"),
    ("sweep.temperature=[1e308]", "sweep.temperature=1e+308", "0.001 to 1000"),
    ("sweep.temperature=[1e-320]", "sweep.temperature=1e-320", "0.001 to 1000"),
    ("sweep.temperature=[nan]", "sweep.temperature=nan", "0.001 to 1000"),
    ("sweep.temperature=[inf]", "sweep.temperature=inf", "0.001 to 1000"),
    ("sweep.width=[2] sweep.depth=[8] sweep.nodes=[8]", "sweep (dflash)='depth=8'", "depth 8 >= block size 8"),
    ("sweep.strategy=[dflash] sweep.depth=[99]", "sweep (dflash)='depth=99'", "block size 8"),
    (
        "sweep.strategy=[ddtree] strategy.force_spine=true sweep.width=[2] sweep.depth=[7] sweep.nodes=[4]",
        "sweep (ddtree)='width=2 depth=7 nodes=4'",
        "nodes 4 < depth 7",
    ),
    ("sweep.strategy=[ddtree] sweep.width=[2] sweep.depth=[2] sweep.nodes=[7]", "sweep (ddtree)=", "nodes 7 > 6"),
    ("sweep.strategy=[eagle] sweep.width=[2] sweep.depth=[2] sweep.nodes=[7]", "sweep (eagle)=", "nodes 7 > 6"),
    ("strategy.min_log_prob=1", "strategy.min_log_prob=1.0", "a number <= 0, or null"),
    ("strategy.min_log_prob=nan", "strategy.min_log_prob=nan", "a number <= 0, or null"),
    ("strategy.force_spine=2", "strategy.force_spine=2", "true or false"),
    # engines
    ("engine.name=tgi", "engine.name='tgi'", "one of reference, sglang, vllm"),
    ("engine.device=tpu", "engine.device='tpu'", "cpu, cuda or cuda:<index>"),
    ("engine.device=cuda:x", "engine.device='cuda:x'", "cpu, cuda or cuda:<index>"),
    ("engine.dtype=int8", "engine.dtype='int8'", "float32, bfloat16"),
    ("engine.threads=0", "engine.threads=0", "from 1 to 1024, or null"),
    ("engine.threads=100000", "engine.threads=100000", "from 1 to 1024, or null"),
    ("+engine.url=http://127.0.0.1:1", "engine.url='http://127.0.0.1:1'", "null: the reference engine"),
    ("+engine.port=80", "engine.port=80", "null: the reference engine"),
    ("engine.timeout_s=0", "engine.timeout_s=0.0", SECONDS),
    ("engine.timeout_s=inf", "engine.timeout_s=inf", SECONDS),
    ("engine.timeout_s=nan", "engine.timeout_s=nan", SECONDS),
    ("engine.timeout_s=soon", "engine.timeout_s='soon'", "a number"),
    ("engine.python=/usr/bin/python3", "engine.python='/usr/bin/python3'", "the reference engine runs in this"),
    ("engine.flags=x", "engine.flags='x'", "a group of settings"),
    ("engine.cost.flops_per_s=0", "engine.cost.flops_per_s=0.0", "a number > 0"),
    ("engine.cost.start_s=-1", "engine.cost.start_s=-1.0", "seconds >= 0"),
    ("+engine.flags.api_key=sk-planted", "engine.flags.api_key='(not shown)'", "no secret"),
    (SERVER + "engine.flags.extra_args=[--api-key,sk-planted]", "engine.flags.extra_args='(not shown)'", "no secret"),
    (SERVER + "engine.url=http://me:planted@host:1", "engine.url='http://<hidden>@host:1'", "http://host:port"),
    ("+hub_token=hf_planted", "hub_token='<hub_token hidden>': unknown key", "sweep"),
    (SERVER + "engine.port=0", "engine.port=0", "a port from 1 to 65535"),
    (SERVER + "engine.port=70000", "engine.port=70000", "a port from 1 to 65535"),
    (SERVER + "engine.url=localhost:8000", "engine.url='localhost:8000'", "http://host:port"),
    (SERVER + "engine.url=http://127.0.0.1:9", "engine.url='http://127.0.0.1:9'", "a running vLLM server"),
    (SERVER + "engine.python=/nowhere/python", "engine.python='/nowhere/python'", ""),
    (SERVER + "engine.flags.nothing=1", "engine.flags.nothing='1': unknown key", "engine"),
    # the model
    ("model.kind=gguf", "model.kind='gguf'", "one of checkpoint, random"),
    ("model.template=jinja", "model.template='jinja'", "one of raw, chat"),
    ("model.thinking=2", "model.thinking=2", "true or false, or null"),
    ("model.context_length=1", "model.context_length=1", "an integer >= 2"),
    ("model.target=null", "model.target=None", "a group of settings"),
    ("model.target.layers=0", "model.target.layers=0", INTEGER),
    ("model.dflash.block_size=1", "model.dflash.block_size=1", "an integer >= 2"),
    ("model.memory_gib=-1", "model.memory_gib=-1.0", "a number >= 0"),
    ("model.random_seed=-1", "model.random_seed=-1", "an integer >= 0"),
    ("model.name=''", "model.name=''", "not empty"),
    ("model.target.source=/nowhere model.kind=checkpoint", "model.target.source='/nowhere'", "a folder"),
    ("model.target.source=no/such model.kind=checkpoint", "model.target.source='no/such'", "Hugging Face"),
    # what is asked
    ("workload.path=missing.jsonl", "workload.path='missing.jsonl'", "No such file"),
    ("workload.path=/dev/zero", "workload.path='/dev/zero'", "a device or a pipe"),
    ("workload.path=null", "workload.path=None", "a file of prompts"),
    ("workload.max_prompts=0", "workload.max_prompts=0", "an integer >= 1, or null"),
    ("workload.categories=[c]", "workload.categories='c'", "one of a, b"),
    ("workload.categories=[]", "workload.categories=[]", "a list of names, or null"),
    ("workload.warmup_path=missing.jsonl", "workload.warmup_path='missing.jsonl'", "No such file"),
    ("workload.turns=second", "workload.turns='second'", "one of all, first"),
    ("workload.contexts=missing.json", "workload.contexts='missing.json'", "contexts/<key>.json of a run"),
    ("workload.name=''", "workload.name=''", "not empty"),
    # the load
    ("load.kind=half-open", "load.kind='half-open'", "one of closed, open"),
    ("load.rate=3", "load.rate=3.0", "null in a closed loop"),
    ("load=open load.rate=0", "load.rate=0.0", "requests a second > 0"),
    ("load=open load.rate=inf", "load.rate=inf", "requests a second > 0"),
    ("load=open load.rate=null", "load.rate=None", "requests a second > 0"),
    ("load.max_new_tokens=0", "load.max_new_tokens=0", INTEGER),
    ("load.max_new_tokens=5000", "load.max_new_tokens=5000", "context of 512"),
    ("load.warmup_tokens=5000", "load.warmup_tokens=5000", "context of 512"),
    ("load.repeats=0", "load.repeats=0", "from 1 to 10000"),
    ("load.blocks=1000000", "load.blocks=1000000", "from 1 to 10000"),
    ("load.top_p=0", "load.top_p=0.0", "a number in (0, 1]"),
    ("load.top_p=nan", "load.top_p=nan", "a number in (0, 1]"),
    ("load.top_k=-1", "load.top_k=-1", "an integer >= 0"),
    ("load.ignore_eos=maybe", "load.ignore_eos='maybe'", "true or false"),
    # hosts, tracking, telemetry, faults
    ("host.kind=telnet", "host.kind='telnet'", "one of local, ssh"),
    ("host.kind=ssh", "host.address=None", "a host name"),
    ("host.address=x", "host.address='x'", "null on a local host"),
    ("host.memory_bytes_per_s=0", "host.memory_bytes_per_s=0", "bytes a second, or null"),
    ("host.gpus=[0,0]", "host.gpus=[0, 0]", "each once"),
    ("host.power_limit_w=0", "host.power_limit_w=0.0", "watts > 0"),
    ("host.sku=Laptop", "host.sku='Laptop'", "Workstation, Server, Max-Q"),
    (SSH + "host.port=70000", "host.port=70000", "a port from 1 to 65535"),
    (SSH + "host.user=-x", "host.user='-x'", "a user name"),
    (SSH + "'host.address=\"-oProxyCommand=x\"'", "host.address='-oProxyCommand=x'", "no options"),
    (SSH + "host.gpus=0", "host.gpus=0", "a list of GPU numbers"),
    (SSH + "host.hosts=abc", "host.hosts='abc'", "a list of hosts"),
    (SSH + "host.hosts=[{address:a,gpus:0}]", "host.hosts[0].gpus=0", "a list of GPU numbers"),
    (SSH + "+host.pythons.foo=x", "host.pythons.foo='x'", "reference, sglang, vllm"),
    (SSH + "host.workdir=work", "host.workdir='work'", "begins with / or ~/"),
    ("+host.workdir=work", "host.workdir='work'", "begins with / or ~/"),
    (SSH + """host.key='a"b'""", """host.key='a"b'""", """without a '"'"""),
    (SSH + "host.key=/nowhere/key dry_run=true", "host.key='/nowhere/key'", "there is none"),
    (SSH + "host.known_hosts=/nowhere/known dry_run=true", "host.known_hosts='/nowhere/known'", "there is none"),
    ("host=pro6000_pool host.key=/nowhere/key dry_run=true", "host.key='/nowhere/key'", "there is none"),
    (SSH + "host.key=~/.ssh/ddbench", "'host.key=~/.ssh/ddbench': not a Hydra", "\"host.key='~/.ssh/ddbench'\""),
    # secrets: HF_TOKEN is in the environment
    ("run_id=" + TOKEN, "run_id='(not shown)'", "the value of HF_TOKEN"),
    ("tracking.project=x" + TOKEN, "tracking.project='(not shown)'", "the value of HF_TOKEN"),
    ("tracking.tags=[a," + TOKEN + "]", "tracking.tags='(not shown)'", "the value of HF_TOKEN"),
    ("workload.path=/data/" + TOKEN, "workload.path='(not shown)'", "the value of HF_TOKEN"),
    ("output_dir=${oc.env:HF_TOKEN}", "output_dir='(not shown)'", "the value of HF_TOKEN"),
    (SERVER + "+engine.flags.note=" + TOKEN, "engine.flags.note='(not shown)'", "the value of HF_TOKEN"),
    (SERVER + "+engine.flags." + TOKEN + "=1", "engine.flags='(not shown)'", "the value of HF_TOKEN"),
    (SERVER + "engine.flags.extra_args=[--api-key=planted]", "'engine.flags.extra_args=[--api-key=<hidden>]'", "Hydra"),
    ("tracking.mode=sometimes", "tracking.mode='sometimes'", "offline, online, disabled"),
    ("tracking.tags=3", "tracking.tags=3", "a text"),
    ("report.figures=maybe", "report.figures='maybe'", "true or false"),
    ("telemetry.interval_s=0", "telemetry.interval_s=0.0", "seconds from 0.05 to 60"),
    ("telemetry.start_temperature_c=5", "telemetry.start_temperature_c=5.0", "degrees from 20 to 110"),
    ("telemetry.start_wait_s=-1", "telemetry.start_wait_s=-1.0", "seconds from 0 to 86400"),
    (
        "telemetry.start_temperature_c=60 engine.stall_timeout_s=200",
        "telemetry.start_wait_s=300.0",
        "less than engine.stall_timeout_s",
    ),
    ("telemetry.client_lag_rounds=0", "telemetry.client_lag_rounds=0.0", "a number > 0, or null"),
    ("faults.retries=-1", "faults.retries=-1", "from 0 to 1000"),
    ("faults.retries=1000000000000", "faults.retries=1000000000000", "from 0 to 1000"),
    ("faults.retry_wait_s=inf", "faults.retry_wait_s=inf", "below a year"),
    ("faults.stale_s=nan", "faults.stale_s=nan", "below a year"),
    ("experiment=doctor doctor.free_disk_gib=nan", "doctor.free_disk_gib=nan", "a number >= 0"),
    ("faults.stale_s=1", "faults.stale_s=1.0", "three times faults.heartbeat_s"),
    # experiments of other kinds
    ("experiment=report run=/nowhere", "run='/nowhere'", "the folder of a run"),
    ("experiment=checkpoint_compare drafters=3", "drafters=3", "some of them"),
    ("experiment=aa_check aa_check.pairs=1", "aa_check.pairs=1", "an integer >= 2"),
    ("experiment=bootstrap engine=reference", "engine='reference'", "vllm"),
    ("experiment=bootstrap engine=vllm " + SSH + "host.gpus=0", "host.gpus=0", "a list of GPU numbers"),
    ("experiment=bootstrap engine=vllm " + SSH + "host.hosts=abc", "host.hosts='abc'", "a list of hosts"),
    ("experiment=bootstrap engine=vllm " + SSH + "host.key=/nowhere/key", "host.key='/nowhere/key'", "there is none"),
    ("experiment=bootstrap engine=vllm engine.url=http://h:1", "engine.url='http://h:1'", "no server is asked"),
    ("experiment=bootstrap engine=vllm bootstrap.wheelhouse=/nowhere", "bootstrap.wheelhouse='/nowhere'", "wheels"),
    ("experiment=train_tiny train_tiny.stages=[x]", "train_tiny.stages='x'", "of corpus, target"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bad")
    for name, count in (("prompts", 6), ("warmup", 1)):
        rows = [
            {"id": f"{name}{i}", "dataset": "made", "category": "ab"[i % 2], "turns": [f"{name} {i}"], "meta": {}}
            for i in range(count)
        ]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return place


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.fixture
def arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Those of a small sweep that is in order, in a folder of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield [
        *("experiment=smoke", "model=tiny_untrained", "tracking=none", "report.figures=false", "workload=file"),
        *("workload.path=prompts.jsonl", "workload.warmup_path=warmup.jsonl", "load.max_new_tokens=6"),
    ]
    GlobalHydra.instance().clear()


def outcome(arguments: list[str]) -> int:
    """What :func:`ddbench.__main__.run` does of one job, without Hydra's own reading of the command line."""
    try:
        with initialize_config_dir(str(door.conf_folder()), version_base="1.3"):
            config = compose("config", overrides=arguments)
    except Exception as error:  # noqa: BLE001  as the door does
        return door._refuse(door.explain(error))
    return door._run_job(config, "id")


def test_there_are_a_hundred() -> None:
    assert len({overrides for overrides, _, _ in REFUSED}) == len(REFUSED) >= 100


def test_without_a_mistake_it_is_accepted(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome([*arguments, "dry_run=true"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["planned"] > 0
    assert not (folder / "outputs").exists()


@pytest.mark.parametrize(("overrides", "begins", "allowed"), REFUSED, ids=[row[0] for row in REFUSED])
def test_one_line_and_nothing_started(
    overrides: str,
    begins: str,
    allowed: str,
    arguments: list[str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [part.strip("'").replace('\\"', '"') if part.startswith("'") else part for part in overrides.split(" ")]
    monkeypatch.setattr(sys, "argv", ["ddbench", *arguments, *given])
    assert outcome([*arguments, *given]) == 2
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith(f"error: {begins}")
    assert allowed in line.removeprefix(f"error: {begins}")
    assert "planted" not in line
    assert told.out == ""
    assert not (folder / "outputs").exists()
