"""Protocols that can be tested with `isinstance` on objects that compute their attributes."""

from typing import Protocol


class CapabilityMeta(type(Protocol)):
    """Lets `isinstance` read the attributes of a `Protocol` with `getattr`; one that is missing or None is not offered.

    From Python 3.12 on, `isinstance` on a plain `Protocol` sees neither the parameters of an `nn.Module` nor what a
    wrapper forwards through `__getattr__`. The test reads the attributes, so properties among them must be cheap.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if not vars(cls).get("_is_protocol"):  # a class that derives from the protocol
            return super().__instancecheck__(instance)
        names = {name for name in (*cls.__annotations__, *vars(cls)) if not name.startswith("_")}
        return all(getattr(instance, name, None) is not None for name in names)
