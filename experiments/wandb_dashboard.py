"""``experiment=wandb_dashboard``: makes the dashboard of a W&B project, from panels that are code."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ddbench.errors import ConfigError
from experiments.progress import say
from experiments.typed import build


@dataclass(frozen=True)
class DashboardSettings:
    """``run_id``: show one run folder alone. ``save`` False: build it, name its panels, and send nothing."""

    entity: str | None
    project: str
    kind: Literal["workspace", "report"]
    run_id: str | None
    save: bool

    def __post_init__(self) -> None:
        if not self.entity:
            raise ConfigError("entity", self.entity, "the W&B user or team that the project belongs to")


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Builds the dashboard and saves it; returns its address and the panels of each section, or W&B's ``error``.

    Raises:
        ConfigError: no entity, or no package for it.
    """
    names = ("entity", "project", "kind", "run_id", "save")
    settings = build(DashboardSettings, {name: config.get(name) for name in names})
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise ConfigError("experiment", "wandb_dashboard", "pip install 'ddbench[wandb]' (it lacks wandb-workspaces)")
    from reports.tracking import dashboard

    assert settings.entity is not None
    make = dashboard.workspace if settings.kind == "workspace" else dashboard.page
    made = make(settings.entity, settings.project, settings.run_id)
    panels = {each.name: len(each.panels) for each in dashboard.sections()}
    if not settings.save:
        say("save=false: built, and not sent")
        return {"dashboard": None, "panels": panels}
    try:
        made.save()
    except Exception as error:  # noqa: BLE001  no key, no network, no such project: W&B has many words for it
        return {"dashboard": None, "panels": panels, "error": f"W&B: {' '.join(str(error).split())}"}
    return {"dashboard": made.url, "panels": panels}
