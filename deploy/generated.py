"""Are the generated files what their sources say? Writes them, or with --check only compares."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from canary.rollout_diagram import document
from deploy.dashboard import render_dashboard
from deploy.evidence.result import json_schema
from deploy.kuberay import with_serve_config
from deploy.manifest import render_manifest
from fleet.config import load_fleet_config

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = ROOT / "deploy" / "manifests"
PROTOS = ("fleet/tokens_v1/tokens.proto", "replicas/verify_rpc/verify.proto")


def generated_files() -> Iterator[tuple[Path, str]]:
    """Every generated file with the text that it should have."""
    config = load_fleet_config(MANIFESTS / "fleet.yaml")
    yield MANIFESTS / "serve.yaml", render_manifest(config)
    service = MANIFESTS / "kuberay.yaml"
    yield service, with_serve_config(service.read_text(), config)
    yield MANIFESTS / "grafana" / "fleet.json", render_dashboard()
    yield ROOT / "docs" / "rollout_states.md", document()
    yield ROOT / "docs" / "evidence.schema.json", json.dumps(json_schema(), indent=2) + "\n"
    yield from _grpc_code()


def _grpc_code() -> Iterator[tuple[Path, str]]:
    builtin = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        code = protoc.main(["protoc", f"-I{ROOT}", f"-I{builtin}", *outputs, *(str(ROOT / proto) for proto in PROTOS)])
        if code != 0:
            raise SystemExit(code)
        for file in sorted(Path(folder).rglob("*.py*")):
            yield ROOT / file.relative_to(folder), file.read_text()


def main(arguments: list[str]) -> int:
    """Exit code 1 when `--check` finds a file that is not current."""
    stale = [(path, text) for path, text in generated_files() if not path.exists() or path.read_text() != text]
    for path, text in stale:
        if "--check" in arguments:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current: run `make docs`\n")
        else:
            path.write_text(text)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
