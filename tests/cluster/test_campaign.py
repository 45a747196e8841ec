"""A whole campaign on a Ray cluster that loses a node."""

from pathlib import Path
from typing import Any

import pytest
from cluster_nodes import add_node
from fake_campaign import begin, of, plan

from attnfuzz.harness.campaign.events import CampaignFinished, CaseKept, Event, JobFailed, JobRestarted, Progress
from attnfuzz.harness.campaign.ray_jobs import RayJobs
from attnfuzz.harness.corpus import Corpus
from attnfuzz.harness.search.messages import JobSetup

pytestmark = pytest.mark.cluster

BACKEND = "torch_sdpa"


def test_a_campaign_that_loses_a_node_runs_all_its_examples(cluster: Any, tmp_path: Path) -> None:
    nodes = [add_node(cluster), add_node(cluster)]
    asked = plan(tmp_path, examples=300, backends=(BACKEND,), jobs=2)
    corpus = Corpus(tmp_path / "corpus")
    events: list[Event] = []
    setup = JobSetup(backends=(BACKEND,), contract="declared", guard=None)
    with RayJobs(asked.jobs, setup, address=cluster.address) as jobs:
        for event in begin(asked, jobs, corpus=corpus).events():
            events.append(event)
            if nodes and isinstance(event, Progress):
                cluster.remove_node(nodes.pop())
                nodes.clear()
    assert not of(JobFailed, events)
    assert len(of(JobRestarted, events)) == 1
    assert sum(event.tally.searched for event in of(Progress, events)) == asked.examples
    assert {kept.entry.case for kept in corpus.kept()} <= {event.case_id for event in of(CaseKept, events)}
    assert corpus.kept()
    assert isinstance(events[-1], CampaignFinished)
