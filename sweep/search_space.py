"""What may vary: parameters, points, constraints. A point is a value for every parameter; None is "left to vLLM".

A point that breaks a constraint is never launched and never changed into another one; whoever draws, draws again.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

from sweep.config.models import Boolean, Choice, FloatRange, IntRange, SearchSpaceConfig
from sweep.errors import ConfigError
from sweep.expressions import Constraint
from sweep.trial import Flag, Flags

MAX_DRAWS = 10_000
_ENUMERABLE = 50_000
_PROBES = 200
# Digits kept of a value without a step: finer differences mean nothing to a server, and commands stay readable.
_DIGITS = 6

Key = tuple[tuple[str, tuple[str, Flag]], ...]
OFF_GRID = "one of the points of the recording"


def canonical(value: Flag) -> tuple[str, Flag]:
    """Equal for equal values: 1 and 1.0 are one value; true and 1, "1" and 1, null and anything are not."""
    kind = "bool" if isinstance(value, bool) else "number" if isinstance(value, (int, float)) else type(value).__name__
    return kind, value


def flags_key(flags: Flags) -> Key:
    """Equal for flags that make one command line."""
    return tuple(sorted((name, canonical(value)) for name, value in flags.items()))


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers `low..high`, on a grid from `low` where `step` is given; `or_null` adds None to them."""

    name: str
    low: Decimal
    high: Decimal
    step: Decimal | None
    integer: bool
    log: bool
    or_null: bool

    @property
    def count(self) -> int | None:
        """How many numbers, None where there is no grid."""
        return None if self.step is None else int((self.high - self.low) // self.step) + 1

    @property
    def size(self) -> int | None:
        """How many values, null included."""
        return None if self.count is None else self.count + self.or_null

    def at(self, index: int) -> int | float:
        """Number `index` of the grid, exactly as its decimals are typed."""
        assert self.step is not None
        exact = self.low + index * self.step
        return int(exact) if self.integer else float(exact)

    def index(self, number: float) -> float | None:
        """Where `number` lies on the grid, a fraction between its points; None outside the range."""
        assert self.step is not None
        exact = Decimal(repr(number))
        return float((exact - self.low) / self.step) if self.low <= exact <= self.high else None

    def quantise(self, value: Flag) -> Flag:
        """`value` without the noise of floating point; one truly off the grid or of another kind stays as it is."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return value
        if self.step is None:
            return min(max(float(f"{value:.{_DIGITS}g}"), float(self.low)), float(self.high))
        nearest = round((Decimal(repr(value)) - self.low) / self.step)
        return self.at(nearest) if math.isclose(self.at(nearest), value, rel_tol=1e-9, abs_tol=1e-12) else value

    def contains(self, value: Flag) -> bool:
        if value is None:
            return self.or_null
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        clean = self.quantise(value)
        assert isinstance(clean, (int, float))
        inside = float(self.low) <= value <= float(self.high)
        return inside and (self.step is None or self.index(clean) in range(self.count or 0))

    def draw(self, rng: random.Random) -> Flag:
        """A number, each equally likely (each magnitude, where `log`), or null as if it were one of at most five."""
        if self.or_null and rng.random() < 1 / (min(self.count or 4, 4) + 1):
            return None
        low, high = float(self.low), float(self.high)
        if self.log and self.integer:
            exact = math.exp(rng.uniform(math.log(low - 0.5), math.log(high + 0.5)))
            return min(max(round(exact), int(low)), int(high))
        if self.count is not None:
            return self.at(rng.randrange(self.count))
        number = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else rng.uniform(low, high)
        return self.quantise(number)

    def ends(self) -> tuple[Flag, ...]:
        """The smallest and the largest number."""
        if self.count is not None:
            return self.at(0), self.at(self.count - 1)
        return tuple(int(end) if self.integer else float(end) for end in (self.low, self.high))

    def values(self) -> Iterator[Flag]:
        """All values, null last. Only for a range with a grid."""
        assert self.count is not None
        yield from (self.at(index) for index in range(self.count))
        if self.or_null:
            yield None


@dataclass(frozen=True, slots=True)
class Options:
    """One of `options`, null among them where that is allowed."""

    name: str
    options: tuple[Flag, ...]

    @property
    def size(self) -> int:
        return len(self.options)

    def index(self, value: Flag) -> int | None:
        """Which option `value` is; None if it is none of them."""
        wanted = canonical(value)
        return next((place for place, option in enumerate(self.options) if canonical(option) == wanted), None)

    def quantise(self, value: Flag) -> Flag:
        """The option as the study file spells it; any other value stays as it is."""
        place = self.index(value)
        return value if place is None else self.options[place]

    def contains(self, value: Flag) -> bool:
        return self.index(value) is not None

    def draw(self, rng: random.Random) -> Flag:
        return self.options[rng.randrange(len(self.options))]

    def ends(self) -> tuple[Flag, ...]:
        """The smallest and the largest number, and whatever is no number."""
        numbers = [one for one in self.options if isinstance(one, (int, float)) and not isinstance(one, bool)]
        others = [one for one in self.options if one not in numbers or isinstance(one, bool)]
        return (*((min(numbers), max(numbers)) if numbers else ()), *others)

    def values(self) -> Iterator[Flag]:
        yield from self.options


Parameter = Range | Options


def _parameter(name: str, spec: IntRange | FloatRange | Choice | Boolean) -> Parameter:
    match spec:
        case Choice():
            return Options(name, spec.values)
        case Boolean():
            return Options(name, (True, False, None) if spec.or_null else (True, False))
        case IntRange():
            step = Decimal(spec.step or 1)
            return Range(name, Decimal(spec.low), Decimal(spec.high), step, True, spec.log, spec.or_null)
        case FloatRange():
            low, high = Decimal(repr(spec.low)), Decimal(repr(spec.high))
            grid = None if spec.step is None else Decimal(repr(spec.step))
            if low == high:
                grid = grid or Decimal(1)
            return Range(name, low, high, grid, False, spec.log, spec.or_null)


def _rank(parameter: Parameter, value: Flag) -> float:
    """Where a value stands among those of its parameter, null last."""
    if isinstance(parameter, Options):
        return parameter.index(value) or 0
    return float(value) if isinstance(value, (int, float)) else math.inf


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Parameters in the order of the study file, and what must hold between them and the fixed flags.

    `only`: the points (by `flags_key`) that there are at all, such as those of a recording; None for the whole box.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    fixed: Mapping[str, object]
    only: frozenset[Key] | None = None

    @classmethod
    def from_config(cls, config: SearchSpaceConfig, fixed: Mapping[str, object]) -> SearchSpace:
        """The space of a study file; `fixed` are the serve flags every trial gets, which constraints may name.

        Raises ConfigError for a constraint that cannot be read, names a flag that is neither searched nor fixed,
        compares values of the wrong kind, or is broken by the fixed flags alone.
        """
        parameters = tuple(_parameter(name, spec) for name, spec in config.parameters.items())
        known = {*config.parameters, *fixed}
        constraints = []
        for place, text in enumerate(config.constraints):
            try:
                constraints.append(_checked(Constraint.parse(text, known), known, config.parameters, fixed))
            except ConfigError as error:
                raise ConfigError(error.message, key=f"search_space.constraints[{place}]") from None
        space = cls(parameters, tuple(constraints), dict(fixed))
        space._probe()
        return space

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def size(self) -> int | None:
        """Distinct points before constraints; None where a parameter has no grid."""
        if self.only is not None:
            return len(self.only)
        total = 1
        for parameter in self.parameters:
            if parameter.size is None:
                return None
            total *= parameter.size
        return total

    def feasible_size(self, limit: int = _ENUMERABLE) -> int | None:
        """Distinct points that keep the constraints; None where more than `limit` would have to be tried."""
        size = self.size()
        if size is None or (self._restricted and size > limit):
            return None
        return sum(1 for _ in self.points()) if self._restricted else size

    def points(self) -> Iterator[dict[str, Flag]]:
        """Every point that keeps the constraints, in a fixed order. Raises ValueError where there is no grid."""
        if self.size() is None:
            raise ValueError("a space with a continuous parameter cannot be enumerated")
        if self.only is not None:
            known = ({name: value for name, (_, value) in key} for key in self.only)
            grid = (self.quantise(point) for point in known if self.contains(point))
            ordered = sorted(grid, key=lambda point: [_rank(one, point[one.name]) for one in self.parameters])
            yield from (point for point in ordered if self.violated(point) is None)
            return
        names = self.names
        for values in product(*(tuple(parameter.values()) for parameter in self.parameters)):
            point = dict(zip(names, values, strict=True))
            if self.violated(point) is None:
                yield point

    @property
    def _restricted(self) -> bool:
        return bool(self.constraints) or self.only is not None

    def violated(self, flags: Flags) -> str | None:
        """The first constraint, as written, that `flags` together with the fixed flags break."""
        if self.only is not None and flags_key(flags) not in self.only:
            return OFF_GRID
        together = {**self.fixed, **flags}
        return next((c.text for c in self.constraints if not c.holds(together)), None)

    def contains(self, flags: Flags) -> bool:
        """Whether `flags` give every parameter (an absent one is null) one of its values, and nothing else.

        Constraints are not asked; see `violated`.
        """
        inside = all(parameter.contains(flags.get(parameter.name)) for parameter in self.parameters)
        return inside and set(flags) <= set(self.names)

    def quantise(self, flags: Flags) -> dict[str, Flag]:
        """The point in its one spelling: every parameter, in order, without floating-point noise."""
        return {parameter.name: parameter.quantise(flags.get(parameter.name)) for parameter in self.parameters}

    def key(self, flags: Flags) -> tuple[tuple[str, Flag], ...]:
        """Hashable, equal for the same point; flags that are no parameters do not count."""
        return tuple(canonical(value) for value in self.quantise(flags).values())

    def draw(self, rng: random.Random) -> dict[str, Flag]:
        """A point of the box, which may break constraints."""
        return {parameter.name: parameter.draw(rng) for parameter in self.parameters}

    def sample(self, rng: random.Random) -> dict[str, Flag]:
        """A uniform point that keeps the constraints. Raises ConfigError when there is, as good as, none."""
        for _ in range(MAX_DRAWS):
            point = self.draw(rng)
            if self.violated(point) is None:
                return point
        size = self.size()
        if size is not None and size <= _ENUMERABLE and (rest := list(self.points())):
            return rng.choice(rest)
        texts = "; ".join(constraint.text for constraint in self.constraints)
        raise ConfigError(
            f"no valid point in {MAX_DRAWS:,} draws: widen a range or loosen a constraint ({texts})",
            key="search_space.constraints",
        )

    def _probe(self) -> None:
        """Let a constraint on values of the wrong kind fail now rather than in the middle of a night."""
        rng = random.Random(0)
        for _ in range(_PROBES if self.constraints else 0):
            point = {**self.fixed, **self.draw(rng)}
            for place, constraint in enumerate(self.constraints):
                try:
                    constraint.holds(point)
                except ConfigError as error:
                    raise ConfigError(error.message, key=f"search_space.constraints[{place}]") from None


def _checked(
    constraint: Constraint, known: set[str], searched: Mapping[str, object], fixed: Mapping[str, object]
) -> Constraint:
    for name in sorted(constraint.names - known):
        nearest: Sequence[str] = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(f"constraint {constraint.text!r}: {name!r} is neither searched nor under serve.flags{hint}")
    if not constraint.names & set(searched) and not constraint.holds(fixed):
        raise ConfigError(f"constraint {constraint.text!r} is broken by the flags under serve.flags alone")
    return constraint
