"""What the user of a viewer asks for; written by the page, read by the session."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from st_rl.sim.viewer.session import ViewSession

Command = tuple[float, float, float]
SPEEDS = {"1x": 1.0, "1/2": 0.5, "1/4": 0.25, "1/10": 0.1}
"""Speeds of the simulation by label."""


Event = Callable[["ViewSession"], None]
"""What a session does between two steps, such as a push."""


@dataclass
class Controls:
    """Settings of the page; single values are replaced as a whole, events wait in a queue, so no lock is needed."""

    command: Command | None = None
    """Command of all robots; None keeps that of the task."""
    is_paused: bool = False
    speed: float = 1.0
    """Simulated seconds per second."""
    robot: int = 0
    """Robot that camera, plots and pushes refer to."""
    clip: int = 0
    """Reference clip of the ghost."""
    clip_time: float | None = None
    """Time in the clip at which the ghost stands still, s; None plays it."""
    _events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)

    def send(self, event: Event) -> None:
        """Add an event for the session."""
        self._events.put(event)

    def take_events(self) -> list[Event]:
        """Return all events since the last call, the oldest first."""
        return [self._events.get() for _ in range(self._events.qsize())]


def push_velocity(direction_deg: float, speed: float, heading: float) -> np.ndarray:
    """`(3,)` m/s in the world that a push adds to a robot with yaw `heading`, rad; 0 is forward, 90 to its left."""
    angle = heading + math.radians(direction_deg)
    return speed * np.array([math.cos(angle), math.sin(angle), 0.0])


def slider_limits(low: float, high: float) -> tuple[float, float] | None:
    """Limits of the slider of a command: the trained range with zero; None if it was trained with zero only."""
    low, high = min(low, 0.0), max(high, 0.0)
    return None if high - low < 1e-6 else (low, high)


def spread_offsets(count: int, spacing: float) -> np.ndarray:
    """`(count, 3)` places on a square grid around the first robot, m, for robots that start at the same place."""
    side = math.ceil(math.sqrt(count))
    places = np.array([(row, column, 0.0) for row in range(side) for column in range(side)][:count])
    return spacing * places
