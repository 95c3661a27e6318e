"""`metadata.json` of a demonstration folder: compared with the trajectories, and rebuilt from them if it is damaged."""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.frames import FrameFileError, Frames, read_frames
from st_rl.utils.data_compresser import get_decompressor

COMPONENT_PREFIX = "obs_"
# The only compression that stores bytes.
_BYTE_COMPRESSION = "normalized_image"


class Metadata(NamedTuple):
    """The metadata of a folder, rebuilt from its trajectories if there is a problem with its file."""

    content: dict[str, Any]
    problem: str | None


def load_metadata(folder: str, refused: Collection[str] = ()) -> Metadata:
    """Read the metadata of a folder without opening the paths in `refused`.

    A file is damaged if it cannot be read, or if no trajectory has its components; the content is then rebuilt from the
    trajectories. A missing file is no problem if they store whole observations.
    """
    content: dict[str, Any] = {}
    problem = None
    try:
        if os.path.join(folder, layout.METADATA_FILE) not in refused:
            content = layout.read_metadata(folder) or {}
    except layout.MetadataError as error:
        problem = str(error)
    if problem is None:
        mismatches = []
        # The metadata must fit one of the trajectories, unless all store whole observations.
        for components in _stored_components(folder, refused):
            mismatches.append(_compare_components(content, components))
            if mismatches[-1] is None:
                break
        problem = None if None in mismatches or not mismatches else mismatches[0]
    if problem is None:
        return Metadata(content, None)
    return Metadata({**content, **_rebuild(folder, refused)}, problem)


def _compare_components(content: Mapping[str, Any], components: Frames) -> str | None:
    """Why the observations of a file cannot be assembled from its components; None if they can."""
    segments, kinds = content.get("obs_segments"), content.get("obs_disassemble_mapping")
    names = ", ".join(components)
    if not isinstance(segments, dict) or not isinstance(kinds, dict):
        return f"it lacks obs_segments or obs_disassemble_mapping, but the trajectories store the components {names}"
    if set(segments) != set(components):
        return f"it lists the components {', '.join(segments)}, the trajectories store {names}"
    try:
        for name in kinds:
            get_decompressor(kinds[name])
    except ValueError as error:
        return f"it has an {error}"
    return None


def _rebuild(folder: str, refused: Collection[str]) -> dict[str, Any]:
    """Whether there are files `done`, and components and compressions as the first trajectory stores them."""
    trajectories = layout.own_trajectories(folder, follow_links=not refused)
    rebuilt = {layout.DONE_FILES_KEY: any(layout.is_finished(trajectory) for trajectory in trajectories)}
    components = next(_stored_components(folder, refused), None)
    if components is None:
        return rebuilt
    return rebuilt | {
        "obs_segments": {name: array.shape[-1] for name, array in components.items()},
        "obs_disassemble_mapping": {
            name: _BYTE_COMPRESSION for name, array in components.items() if array.dtype == np.uint8
        },
    }


def _stored_components(folder: str, refused: Collection[str]) -> Iterator[Frames]:
    """The components of the first readable file of each trajectory, until one stores whole observations."""
    for trajectory in layout.own_trajectories(folder, follow_links=not refused):
        for name in layout.frame_files(trajectory):
            path = os.path.join(trajectory, name)
            if path in refused:
                continue
            try:
                frames = read_frames(path)
            except (FrameFileError, OSError):
                continue
            if "observations" in frames:
                return
            components = {
                key.removeprefix(COMPONENT_PREFIX): array
                for key, array in frames.items()
                if key.startswith(COMPONENT_PREFIX)
            }
            if components:
                yield components
            break
