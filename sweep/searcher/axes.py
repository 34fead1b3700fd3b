"""A search space in Optuna's terms: one or two Optuna parameters for each of ours.

Grids become whole numbers counted from 0, so that Optuna's floating-point steps never reach a command line. Choices
become their place in the list, so that Optuna need not tell 1 from true; where they are three numbers or more they
are put in order and proposed like a grid, since 1024 says something about 2048. Null is a switch of its own
(`NAME?`) and the number exists only while the switch is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from sweep.search_space import Options, Parameter, Range, SearchSpace
from sweep.trial import Flag, Flags

Params = dict[str, int | float]
_ON, _OFF = 1, 0
_SWITCH = CategoricalDistribution((_OFF, _ON))


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter. `distribution` is None where there is only one value."""

    parameter: Parameter
    distribution: BaseDistribution | None
    ordered: tuple[Flag, ...] | None
    or_null: bool

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def switch(self) -> str:
        return f"{self.name}?"

    def encode(self, value: Flag) -> Params | None:
        """Optuna's parameters for `value`; None if they cannot express it."""
        if value is None and self.or_null:
            return {self.switch: _OFF}
        number = self._number(value)
        if number is None:
            return None
        params: Params = {self.switch: _ON} if self.or_null else {}
        return params if self.distribution is None else {**params, self.name: number}

    def _number(self, value: Flag) -> int | float | None:
        if isinstance(self.parameter, Options):
            place = self.parameter.index(value)
            if place is None or self.ordered is None:
                return place
            return self.ordered.index(self.parameter.options[place])
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        if not float(self.parameter.low) <= value <= float(self.parameter.high):
            return None
        return value if self.parameter.log or self.parameter.step is None else self.parameter.index(value)

    def decode(self, number: int | float | None) -> Flag:
        """The value Optuna's number stands for."""
        if isinstance(self.parameter, Options):
            values = self.parameter.options if self.ordered is None else self.ordered
            return values[int(number or 0)]
        if number is None:
            return self.parameter.at(0)
        if self.parameter.log or self.parameter.step is None:
            return self.parameter.quantise(number)
        return self.parameter.at(int(number))


def _axis(parameter: Parameter) -> Axis:
    if isinstance(parameter, Options):
        numbers = [v for v in parameter.options if isinstance(v, (int, float)) and not isinstance(v, bool)]
        or_null = None in parameter.options
        if len(numbers) >= 3 and len(numbers) + or_null == parameter.size:
            return Axis(parameter, IntDistribution(0, len(numbers) - 1), tuple(sorted(numbers)), or_null)
        places = CategoricalDistribution(tuple(range(parameter.size)))
        return Axis(parameter, places if parameter.size > 1 else None, None, False)
    distribution = _distribution(parameter) if parameter.low != parameter.high else None
    return Axis(parameter, distribution, None, parameter.or_null)


def _distribution(parameter: Range) -> BaseDistribution:
    if parameter.log and parameter.integer:
        return IntDistribution(int(parameter.low), int(parameter.high), log=True)
    if parameter.count is not None:
        return IntDistribution(0, parameter.count - 1)
    return FloatDistribution(float(parameter.low), float(parameter.high), log=parameter.log)


@dataclass(frozen=True, slots=True)
class Axes:
    """All parameters of a space."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, space: SearchSpace) -> Axes:
        return cls(tuple(_axis(parameter) for parameter in space.parameters))

    def encode(self, flags: Flags) -> Params | None:
        """Optuna's parameters of a point; None where one of its values lies outside the space."""
        params: Params = {}
        for axis in self.axes:
            part = axis.encode(flags.get(axis.name))
            if part is None:
                return None
            params |= part
        return params

    def decode(self, params: Mapping[str, int | float]) -> dict[str, Flag]:
        """The point of Optuna's parameters; a number beside a switch that is off does not count."""
        return {
            axis.name: None if axis.or_null and params[axis.switch] == _OFF else axis.decode(params.get(axis.name))
            for axis in self.axes
        }

    def distributions(self) -> dict[str, BaseDistribution]:
        """Every parameter of Optuna's."""
        every: dict[str, BaseDistribution] = {}
        for axis in self.axes:
            if axis.or_null:
                every[axis.switch] = _SWITCH
            if axis.distribution is not None:
                every[axis.name] = axis.distribution
        return every
