"""Which path serves a request? Header override, eligibility, then a sticky and monotone hash.

hash(salt, key) is uniform on [0, 1) and fixed for a whole rollout, so a key stays in its arm while the weight
stands, and raising the weight moves keys to the canary only, never back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from fleet.errors import BadRequest
from fleet.traffic import Eligibility, SamplingMode, Split, control_percent

OVERRIDE_HEADER = "x-fleet-path"
HEAVY_SHARE = 0.2
HEAVY_WINDOW = 1000
HEAVY_MINIMUM = 200
REMEMBERED_KEYS = 50_000
"""Users that a router tells from newcomers; what comes after them is not counted as new."""
_REQUEST_KEY = "request_id="


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a routing decision may look at."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    is_greedy: bool
    user: str | None = None
    tenant: str | None = None
    """Name of the API key."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The path that is charged with a request, whoever ends up serving it."""

    path: str
    is_compared: bool
    """Part of the comparison: eligible, chosen by the hash, while there is a canary."""
    is_control: bool = False
    """One of stable's users who are counted apart, as many as the canary's: two samples of the same path."""
    draft_length: int | None = field(default=None, compare=False)
    """The most tokens to draft in a round where evidence says so."""
    is_typical: bool = False
    """Routed by the rules alone and admitted by that of the rollout, so that it stands for what evidence is about."""
    is_newcomer: bool = field(default=False, compare=False)
    """The first request of its key in this rollout, as far as this router knows."""


def is_eligible(facts: RequestFacts, rule: Eligibility, canary_open: int = 0) -> bool:
    """Whether a request takes part in the rollout, with `canary_open` requests open on the canary's path."""
    if rule.cells is not None and rule.cell_of(_sampling(facts), canary_open + 1) is None:
        return False
    return is_admitted(facts, rule)


def is_admitted(facts: RequestFacts, rule: Eligibility) -> bool:
    """Whether a request is one of those that the rule is about, whatever the load: all of it but the cells."""
    if rule.max_prompt_tokens is not None and facts.prompt_tokens > rule.max_prompt_tokens:
        return False
    if rule.min_max_tokens is not None and facts.max_tokens < rule.min_max_tokens:
        return False
    if rule.sampling is not None and facts.is_greedy != (rule.sampling is SamplingMode.GREEDY):
        return False
    if rule.tenants and facts.tenant not in rule.tenants and facts.user not in rule.tenants:
        return False
    return all(facts.headers.get(name.lower()) == value for name, value in rule.headers)


def _sampling(facts: RequestFacts) -> SamplingMode:
    return SamplingMode.GREEDY if facts.is_greedy else SamplingMode.SAMPLED


def position_of(salt: str, key: str) -> float:
    """Where a key lies in [0, 1): uniform over keys, independent between salts."""
    digest = blake2b(f"{len(salt)}:{salt}{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def choose_path(
    split: Split, facts: RequestFacts, keys: AssignmentKeys, paths: Collection[str], canary_open: int = 0
) -> Assignment:
    """The path of a request; BadRequest when the override names none of `paths`.

    `canary_open` requests are open on the canary's path in the whole fleet; whoever is eligible is so on either arm.
    """
    override = facts.headers.get(OVERRIDE_HEADER)
    if override is not None:
        if override not in paths:
            known = ", ".join(sorted(paths))
            raise BadRequest(f"{OVERRIDE_HEADER}: there is no path '{override}'; known: {known}", param=OVERRIDE_HEADER)
        return Assignment(override, is_compared=False)
    if split.canary is None:
        return Assignment(split.stable, is_compared=False, is_typical=True)
    if not is_eligible(facts, split.eligible, canary_open):
        is_typical = is_admitted(facts, split.eligible)
        return Assignment(split.stable, is_compared=False, is_typical=is_typical)
    key = keys.key_of(facts, split.salt)
    is_newcomer = keys.is_new(key)
    percent = position_of(split.salt, key) * 100
    if percent < split.canary_percent:
        cell = split.eligible.cell_of(_sampling(facts), canary_open + 1)
        length = None if cell is None else cell.draft_length
        return Assignment(split.canary, is_compared=True, draft_length=length, is_typical=True, is_newcomer=is_newcomer)
    is_control = percent < split.canary_percent + control_percent(split.canary_percent)
    return Assignment(split.stable, is_compared=True, is_control=is_control, is_typical=True, is_newcomer=is_newcomer)


class AssignmentKeys:
    """Picks the assignment key of each request, and sees through keys that stand for a crowd.

    The first configured source that is present wins. A value that makes up more than `HEAVY_SHARE` of the last
    `HEAVY_WINDOW` eligible requests (and of at least `HEAVY_MINIMUM`) is one product behind one key, not a user:
    hashing it would send 0 or 100 % of that traffic. From then on, for as long as the salt stands, it is passed
    over and the next source decides. It is never un-marked within a rollout, so nobody moves twice, and lighter
    keys are not touched at all. The request's own id comes last.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        """Sources are 'header:NAME', 'user' or 'request_id'."""
        self._sources = tuple(sources)
        self._salt: str | None = None
        self._seen: list[_Recent] = []
        self._heavy: set[tuple[str, str]] = set()
        self._known: set[str] = set()

    def key_of(self, facts: RequestFacts, salt: str) -> str:
        """The key of an eligible request; every call counts as one request seen."""
        if salt != self._salt:
            self._salt = salt
            self._seen = [_Recent() for _ in self._sources]
            self._heavy = set()
            self._known = set()
        values = [_value(source, facts) for source in self._sources]
        for source, value, recent in zip(self._sources, values, self._seen, strict=True):
            if recent.is_heavy_after(value) and value is not None:
                self._heavy.add((source, value))
        for source, value in zip(self._sources, values, strict=True):
            if value is not None and (source, value) not in self._heavy:
                return f"{source}={value}"
        return f"{_REQUEST_KEY}{facts.request_id}"

    def is_new(self, key: str) -> bool:
        """Whether this is the first request of a key under the present salt; it is remembered from now on."""
        if key.startswith(_REQUEST_KEY):
            return True
        if key in self._known or len(self._known) >= REMEMBERED_KEYS:
            return False
        self._known.add(key)
        return True


class _Recent:
    """The values of one source over the last requests, absent ones included."""

    def __init__(self) -> None:
        self._window: deque[str | None] = deque()
        self._counts: Counter[str | None] = Counter()

    def is_heavy_after(self, value: str | None) -> bool:
        """Count a value; whether it is now heavy."""
        self._window.append(value)
        self._counts[value] += 1
        if len(self._window) > HEAVY_WINDOW:
            oldest = self._window.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        size = len(self._window)
        return size >= HEAVY_MINIMUM and self._counts[value] > HEAVY_SHARE * size


def _value(source: str, facts: RequestFacts) -> str | None:
    if source == "user":
        return facts.user or None
    if source == "request_id":
        return facts.request_id
    return facts.headers.get(source.removeprefix("header:").lower()) or None


class CurrentSplit:
    """The split a router routes by: the newest it was told, minus a canary that it saw fail hard.

    Before the controller has spoken everything goes to stable. After a hard trip the canary gets nothing until the
    controller, knowing of the trip, has issued a newer split.
    """

    def __init__(self, stable: str) -> None:
        self._told = Split(version=0, stable=stable)
        self._open_elsewhere: Mapping[str, int] = {}
        self._tripped_version: int | None = None

    @property
    def version(self) -> int:
        return self._told.version

    @property
    def split(self) -> Split:
        return self._told if self._tripped_version is None else replace(self._told, canary_percent=0.0)

    def open_elsewhere(self, path: str) -> int:
        """Streams open on a path through the other routers, as last told."""
        return self._open_elsewhere.get(path, 0)

    def note_elsewhere(self, in_flight: Mapping[str, int]) -> None:
        self._open_elsewhere = in_flight

    def trip(self, path: str) -> bool:
        """Take the canary out at once; whether that changed anything."""
        if path != self._told.canary or self._tripped_version is not None:
            return False
        self._tripped_version = self._told.version
        return True

    def adopt(self, split: Split, *, knows_of_trips: bool) -> None:
        """Route by a newer split. It ends a trip only if it was issued by a controller that knew of it."""
        if split.version <= self._told.version:
            return
        self._told = split
        if self._tripped_version is not None and knows_of_trips:
            self._tripped_version = None
