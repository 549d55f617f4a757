"""The one door: ``python -m ddbench experiment=<name> key=value ...``, configured by Hydra from ``conf/``.

An experiment is a function named by ``_target_``. It takes the composed, resolved configuration as a plain dictionary
and the run id to use where none is given, and returns a JSON object, which becomes the last line of standard output.
Exit status: 0; 1 when a cell failed (or, with ``strict=true``, is suspect) or something broke; 2 for a configuration
error, one line on standard error; 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import platform
import re
import secrets
import sys
import traceback
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddbench.errors import Broken, ConfigError, JobEnded
from ddbench.multirun import Refused, Stopped, ended, note_end
from ddbench.redaction import USER, hide, learn, redact, secret_in
from ddbench.several import with_workloads

SIGNAL_EXIT = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}


def main() -> None:
    """Runs what the command line asks for, and exits."""
    sys.exit(run())


def run() -> int:
    """Composes the configuration of ``sys.argv``, runs its experiment once a job, and returns the exit status."""
    run_id = new_run_id()  # shared by the jobs of a multirun
    codes: list[int] = []  # of the jobs that run in this process
    here = platform.node(), os.getpid()

    def job(config: DictConfig) -> None:
        stopped = ended()
        codes.append(_run_job(config, run_id) if stopped is None else stopped)
        if codes[-1] in SIGNAL_EXIT.values():
            note_end(codes[-1])
            if (platform.node(), os.getpid()) == here:
                raise Stopped(codes[-1])
        if codes[-1] and (platform.node(), os.getpid()) != here:
            raise JobEnded(codes[-1])  # Hydra's launcher brings it home

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra's errors come to us whole
    door = hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name="config")
    try:
        door(job)()
    except KeyboardInterrupt:
        return SIGNAL_EXIT["SIGINT"]
    except Refused as refused:
        return _refuse(str(refused))
    except Stopped as stopped:
        return stopped.code
    except JobEnded as failed:
        return max([*codes, failed.code])
    except Exception as error:  # noqa: BLE001  a job catches its own: this is Hydra composing the configuration
        return _refuse(explain(error))
    return max(codes, default=0)


def new_run_id() -> str:
    """The time of the start and six hex digits at random: commands of one second have folders of their own."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def conf_folder() -> Path:
    """``ddbench/conf`` as installed from a wheel, else ``conf`` beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    places = [package / "conf", package.parent / "conf"]
    return next((place for place in places if (place / "config.yaml").is_file()), places[-1])


def _run_job(config: DictConfig, run_id: str) -> int:
    try:
        plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        plain = with_workloads(plain, conf_folder())
        learn(plain)
        _refuse_secrets(plain)
        summary = _experiment(plain.get("_target_"))(plain, run_id)
    except ConfigError as error:
        return _refuse(str(error))
    except OmegaConfBaseException as error:
        return _refuse(explain(error))
    except Broken as error:
        sys.stderr.write(f"error: {hide(str(error))}\n")
        return 1
    except Exception:  # noqa: BLE001  the last stop: whatever broke, say so and exit 1
        sys.stderr.write(USER.sub(r"\g<before><hidden>", redact(traceback.format_exc())))
        return 1
    with suppress(OSError):  # a terminal that was closed
        sys.stdout.write(json.dumps(summary, allow_nan=False) + "\n")
        sys.stdout.flush()
    return exit_status(summary, strict=bool(plain.get("strict")))


def exit_status(summary: dict[str, Any], *, strict: bool) -> int:
    """Exit status of a run by its summary: a signal's own, 1 for failed (or, if strict, suspect) cells, else 0."""
    if "interrupted" in summary:
        return SIGNAL_EXIT[summary["interrupted"]]
    cells = summary.get("cells", {})
    bad = cells.get("failed", 0) + (cells.get("suspect", 0) if strict else 0)
    return 1 if bad or "error" in summary else 0


def _experiment(target: object) -> Any:
    """The function named by ``_target_``."""
    module, _, name = str(target).rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ImportError) and error.name not in (module, module.partition(".")[0]):
            raise  # the experiment exists; something that it needs does not
        found = None
    if not inspect.isfunction(found) or list(inspect.signature(found).parameters) != ["config", "run_id"]:
        raise ConfigError("_target_", target, "the path of a function of an experiment, as package.module.function")
    return found


def _refuse_secrets(config: dict[str, Any]) -> None:
    """What is configured is stored, and is what a run and its cells are known by: a secret's value has no place in it.

    Raises:
        ConfigError: it holds one; named are the key and what the secret is called, never the value.
    """
    found = secret_in(config)
    if found is not None:
        allowed = f"no secret, and this holds the value of {found[1]}: what is configured is stored; leave it there"
        raise ConfigError(found[0], "(not shown)", allowed)


def _refuse(line: str) -> int:
    learn({key.lstrip("+~"): value for key, _, value in (arg.partition("=") for arg in sys.argv[1:])})
    sys.stderr.write(f"error: {hide(line, sys.argv[1:])}\n")
    return 2


def explain(error: BaseException) -> str:
    """One line for a Hydra or OmegaConf error: the key, the value, and what is allowed."""
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.partition("=")
        quoted = "" if value[:1] in ("", "[", "{", "'", '"') else f"; with ~ or other signs in it, \"{key}='{value}'\""
        write = f"write key=value, group=option or key=[a,b]{quoted}"
        return f"{error.override!r}: not a Hydra override; {write} ({text})"
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _unknown_option(str(error.missing_cfg_file), error.options)
    if isinstance(error, ConfigCompositionException):
        return _unknown_key(text)
    cause = f" ({' '.join(str(error.__cause__).split())})" if error.__cause__ else ""
    return f"{text}{cause}"


def _unknown_option(config: str, options: Any) -> str:
    group, _, option = config.rpartition("/")
    more = "; the extras `launchers` and `ray` of ddbench bring more" if group == "hydra/launcher" else ""
    return str(ConfigError(group, option, f"one of {', '.join(sorted(options))}{more}"))


def _unknown_key(text: str) -> str:
    """``Could not override 'sweep.widht'. ... Key 'widht' is not in 'sweep'``: name the key and what is near it."""
    found = re.search(r"Could not (?:override|append value to) '([^']+)'", text) or re.search(
        r"Could not override '([^']+)'", text
    )
    if found is None:
        return text
    key = found.group(1)
    given = next((arg.partition("=")[2] for arg in sys.argv[1:] if arg.lstrip("+~").startswith(f"{key}=")), None)
    known = sorted(_known_keys())
    near = difflib.get_close_matches(key, known, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"{key}={given!r}: unknown key; {hint}known are {', '.join(k for k in known if '.' not in k)} and their parts"
    )


def _known_keys() -> set[str]:
    """Every key, dotted, of the configuration without overrides but for the groups chosen on the command line."""
    from hydra import compose, initialize_config_dir

    groups = [arg for arg in sys.argv[1:] if re.fullmatch(r"[a-z]+=[\w-]+", arg)]
    keys: set[str] = set()
    for overrides in (groups, []):
        try:
            with initialize_config_dir(str(conf_folder()), version_base="1.3"):
                config = compose("config", overrides=overrides)
        except (HydraException, OmegaConfBaseException):
            continue
        return _dotted(OmegaConf.to_container(config), "", keys)
    return keys


def _dotted(value: Any, prefix: str, keys: set[str]) -> set[str]:
    for name, inner in value.items():
        keys.add(f"{prefix}{name}")
        if isinstance(inner, dict):
            _dotted(inner, f"{prefix}{name}.", keys)
    return keys


if __name__ == "__main__":
    main()
