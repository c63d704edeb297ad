"""Temporal's development server doing the work that our job engine is measured by.

Called as the program of the other engines is, and answers with the same line of JSON. A job is a
workflow whose steps are activities that do nothing.

A client in Python would usually measure Python. Here it is a shell around a core that is compiled,
and at some tens of jobs a second it is the server that is measured.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

USAGE = "usage: temporal.py Temporal STEPS IN_FLIGHT MS FOLDER SERVER"

if len(sys.argv) != 7 or sys.argv[1] != "Temporal":
    sys.exit(USAGE)

STEPS, IN_FLIGHT, ROUND_MS = (int(word) for word in sys.argv[2:5])
FOLDER, SERVER = (Path(word) for word in sys.argv[5:7])

# The client's package was installed beside the server.
sys.path.insert(0, str(SERVER.parents[1]))

from temporalio import activity, workflow  # noqa: E402
from temporalio.client import Client  # noqa: E402
from temporalio.worker import UnsandboxedWorkflowRunner, Worker  # noqa: E402

QUEUE = "bench"
START_MAX_S = 60
STEP_MAX = timedelta(seconds=60)
# All jobs that were under way when the round ended.
END_MAX_S = 300


@activity.defn
async def step() -> None:
    pass


@workflow.defn
class Noop:
    @workflow.run
    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await workflow.execute_activity(step, start_to_close_timeout=STEP_MAX)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(port: int) -> subprocess.Popen:
    command = [SERVER, "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
    command += ["--port", str(port), "--log-level", "never"]
    command += ["--db-filename", FOLDER / "temporal.db"]
    # As durable as its rollback journal, but with a quarter of the syncs, as the others have it.
    command += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=FULL"]
    # It would ask its makers for news.
    environment = os.environ | {"TEMPORAL_VERSION_CHECK_DISABLED": "1"}
    none = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdin=none, stdout=none, stderr=none)


async def connected(port: int, server: subprocess.Popen) -> Client:
    """Returns when the server answers."""
    until = time.monotonic() + START_MAX_S
    while True:
        try:
            return await Client.connect(f"127.0.0.1:{port}")
        except RuntimeError as error:
            if server.poll() is not None:
                sys.exit(f"the server ended with {server.returncode}")
            if time.monotonic() > until:
                sys.exit(f"the server does not answer: {error}")
            await asyncio.sleep(0.1)


async def job(client: Client, name: str) -> None:
    """Comes back when its end is kept."""
    await client.execute_workflow(Noop.run, STEPS, id=name, task_queue=QUEUE)


async def measured(client: Client) -> dict:
    begin = time.monotonic()
    latencies_us = []

    async def caller(number: int) -> None:
        count = 0
        while time.monotonic() - begin < ROUND_MS / 1000:
            began = time.monotonic()
            await job(client, f"job-{number}-{count}")
            latencies_us.append(int((time.monotonic() - began) * 1e6))
            count += 1

    await asyncio.gather(*(caller(number) for number in range(IN_FLIGHT)))
    # Jobs last longer than many a round, so what is begun is also ended and counted.
    per_second = len(latencies_us) / (time.monotonic() - begin)
    return {"per_second": per_second, "latencies_us": latencies_us}


async def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = start(port)
    try:
        client = await connected(port, server)
        # A workflow that does nothing needs no sandbox, which would be the client's work.
        runner = UnsandboxedWorkflowRunner()
        async with Worker(
            client, task_queue=QUEUE, workflows=[Noop], activities=[step], workflow_runner=runner
        ):
            # The queue is known some time after the worker asked for it.
            await asyncio.wait_for(job(client, "first"), START_MAX_S)
            shown = await asyncio.wait_for(measured(client), ROUND_MS / 1000 + END_MAX_S)
        print(json.dumps(shown))
    finally:
        server.kill()
        server.wait()


asyncio.run(main())
