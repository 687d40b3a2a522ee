"""How is a whole rollout written down, so that a replay can begin there instead of at the first event?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from canary.guardrails import Evidence
from canary.plan import Plan
from canary.rollout_state import Rollout

_Adapters = Mapping[str, TypeAdapter[Any]]


def _adapters(of: type, *, without: tuple[str, ...] = ()) -> _Adapters:
    return {name: TypeAdapter(kind) for name, kind in get_type_hints(of).items() if name not in without}


# The plan is in RolloutStarted as it was given, and read from there. Evidence is taken apart here because its
# fields are called like the modules that their types come from, which pydantic cannot resolve by itself.
_ROLLOUT = _adapters(Rollout, without=("plan", "evidence"))
_EVIDENCE = _adapters(Evidence)

SHAPE = hashlib.sha256(
    json.dumps([{name: item.json_schema() for name, item in part.items()} for part in (_ROLLOUT, _EVIDENCE)]).encode()
).hexdigest()
"""Changes with any field of a rollout or its evidence; a snapshot of another shape says nothing to this version."""


def freeze(rollout: Rollout) -> str:
    """JSON (with Infinity where evidence has it) from which `thaw` makes an equal rollout."""
    value = {"rollout": _dump(_ROLLOUT, rollout), "evidence": _dump(_EVIDENCE, rollout.evidence)}
    return json.dumps(value, separators=(",", ":"))


def thaw(body: str, plan: Plan) -> Rollout:
    """The rollout again, bit for bit, given the plan it carries out."""
    value = json.loads(body)
    evidence = Evidence(**_load(_EVIDENCE, value["evidence"]))
    return Rollout(plan=plan, evidence=evidence, **_load(_ROLLOUT, value["rollout"]))


def _dump(adapters: _Adapters, of: object) -> dict[str, Any]:
    return {name: adapter.dump_python(getattr(of, name), mode="json") for name, adapter in adapters.items()}


def _load(adapters: _Adapters, value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: adapter.validate_python(value[name]) for name, adapter in adapters.items()}
