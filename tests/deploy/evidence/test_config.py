"""What a matrix.yaml must not hold, as all of it is written into the run and into every report."""

from typing import Any

import pytest

from deploy.evidence.config import parse_matrix
from fleet.errors import ConfigError


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"workload": {"key": "hunter22hunter22"}}, "workload.key"),
        ({"workload": {"key": "ENV:hunter22"}}, "workload.key"),
        ({"url": "https://bob:hunter22@fleet.example.org"}, "url"),
        ({"url": "https://hunter22@fleet.example.org"}, "url"),
        ({"url": "https://fleet.example.org/?token=hunter22"}, "url"),
        ({"url": "https://fleet.example.org/#hunter22"}, "url"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(keys: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match="written into every report") as caught:
        parse_matrix(keys, "matrix.yaml")
    assert str(caught.value).startswith(f"matrix.yaml: {where}: ")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("key", ["env:CAPTURE_KEY", "file:~/capture.key", None])
def test_the_name_of_a_secret_and_a_plain_url_are_taken(key: str | None) -> None:
    config = parse_matrix({"url": "https://fleet.example.org:8443/base", "workload": {"key": key}}, "matrix.yaml")
    assert (config.workload.key, config.url) == (key, "https://fleet.example.org:8443/base")
