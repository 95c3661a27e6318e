"""What the campaigns of kills share: counts of what was seen, broken promises, and the results file."""

import json
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import describe_machine, write_results

RESULTS = Path(__file__).parents[1] / "results"
MAX_FAILURES = 5
# Of the kills, those that come while the process starts.
START_FRACTION = 0.25


@dataclass
class Campaign:
    """Counts of everything that was seen, and the failures in words."""

    random: random.Random
    work: Path
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, kind: str, text: str) -> None:
        """Count a broken promise."""
        self.counts[kind] += 1
        self.failures.append(f"{kind}: {text}")
        print(f"FAILURE {kind}: {text}", flush=True)

    def needs_kills(self, wanted: int) -> bool:
        """Whether fewer processes than wanted were killed so far, and not too many failures were found."""
        return self.counts["kills"] < wanted and len(self.failures) < MAX_FAILURES


def report_campaigns(
    campaigns: Mapping[str, Campaign], promises: Sequence[str], options: Namespace, begin: float
) -> int:
    """Write and print the results of campaigns that began at `begin`; returns the exit code, 1 for a broken promise."""
    total = sum((campaign.counts for campaign in campaigns.values()), Counter())
    failures = [failure for campaign in campaigns.values() for failure in campaign.failures]
    results = {
        **describe_machine(),
        "seed": options.seed,
        "minutes": (time.monotonic() - begin) / 60,
        "holds": not failures,
        "broken_promises": {name: total[name] for name in promises},
        **{kind: dict(sorted(campaign.counts.items())) for kind, campaign in campaigns.items()},
        "failures": failures,
    }
    write_results(options.out, results)
    print(json.dumps(results, indent=1))
    return int(bool(failures))
