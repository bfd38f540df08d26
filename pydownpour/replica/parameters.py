"""The mapping a replica shows its parameters as."""

from __future__ import annotations

import copy
from typing import Any, NoReturn, final

from numpy.typing import NDArray

from pydownpour.errors import ParameterError

Array = NDArray[Any]


@final
class Parameters(dict[str, Array]):
    """Names -> arrays. The mapping is for reading, the arrays are for reading and writing.

    Their memory stays the same through the job, and the session reads and writes it: so an array
    cannot be replaced, only written into. ``dict(parameters)`` is a plain dict of the same arrays,
    for libraries that look for one, and ``copy.deepcopy`` a plain dict of copies.

    Raises:
        ParameterError: an array is assigned, added or removed.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self:
            self._refuse()
        if value is not self[name]:  # parameters[name] += ... has written into the array already
            raise ParameterError(
                f"parameters[{name!r}] = ... would put another array where neither the session "
                f"nor the shards look; write into its own: parameters[{name!r}][...] = ...",
                array=name,
            )

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        """Refused: the arrays are the job's."""
        raise ParameterError(
            "a replica's parameters are those of the job, fixed when it started: none can be "
            "added, replaced or removed; write into an array with parameters[name][...] = ..."
        )

    __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __copy__(self) -> dict[str, Array]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Array]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)
