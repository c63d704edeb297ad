/*
 * graphile-worker on PostgreSQL doing the work that our job engine is measured by. Called as the
 * program of the other engines is, and answers with the same line of JSON. A job is a chain of
 * tasks, of which each adds the next. It runs in Node because the engine does.
 */
"use strict";

// Found by NODE_PATH.
const { Logger, run } = require("graphile-worker");
const { Pool } = require("pg");

const USAGE = "usage: graphile.cjs graphile-worker STEPS IN_FLIGHT MS FOLDER SERVER";
// All jobs that were under way when the round ended.
const END_MAX_MS = 60_000;
// Its own default; it is slower with more.
const CONNECTIONS = 10;
// Half as fast again as without: jobs are fetched together, and so are ends that come together.
const worker = { localQueue: { size: 64 }, completeJobBatchDelay: 0 };

const [engine, steps, inFlight, roundMs, , server] = process.argv.slice(2);
if (engine !== "graphile-worker" || !server) {
  console.error(USAGE);
  process.exit(2);
}

// The last task of a chain, by its id, and who waits for its end, by the number of the caller.
const lastTasks = new Map();
const waiters = new Map();

function ended(id) {
  const caller = lastTasks.get(String(id));
  if (caller === undefined) return;
  lastTasks.delete(String(id));
  waiters.get(caller)();
}

// The engine tells of an end before it is kept. An end is a row deleted, so its own statement says
// when it is, without a look at the table that would cost it something.
function listen(client) {
  const query = client.query;
  client.query = function (config, ...rest) {
    const answer = query.call(this, config, ...rest);
    const text = config?.text ?? "";
    if (text.startsWith("delete from") && text.includes("_private_jobs") && config.values) {
      const ids = [config.values[0]].flat();
      answer.then(() => ids.forEach(ended), () => {});
    }
    return answer;
  };
}

async function step({ caller, left }, helpers) {
  if (left > 1) {
    await helpers.addJob("step", { caller, left: left - 1 });
  } else {
    lastTasks.set(String(helpers.job.id), caller);
  }
}

async function main() {
  const pgPool = new Pool({ connectionString: server, max: CONNECTIONS });
  pgPool.on("connect", listen);
  // Whoever waits for the connection hears of it, too.
  pgPool.on("error", () => {});
  const runner = await run({
    pgPool,
    concurrency: Number(inFlight),
    noHandleSignals: true,
    logger: new Logger(() => () => {}),
    taskList: { step },
    preset: { worker },
  });
  const job = (caller) =>
    new Promise((resolve, reject) => {
      waiters.set(caller, resolve);
      runner.addJob("step", { caller, left: Number(steps) }).catch(reject);
    });
  const latencies = [];
  const begin = performance.now();
  async function calls(caller) {
    while (performance.now() - begin < Number(roundMs)) {
      const began = performance.now();
      await job(caller);
      latencies.push(Math.round((performance.now() - began) * 1000));
    }
  }
  await Promise.all(Array.from({ length: Number(inFlight) }, (_, caller) => calls(caller)));
  const perSecond = latencies.length / ((performance.now() - begin) / 1000);
  console.log(JSON.stringify({ per_second: perSecond, latencies_us: latencies }));
  process.exit(0);
}

setTimeout(() => {
  console.error("its jobs do not end");
  process.exit(1);
}, Number(roundMs) + END_MAX_MS);
main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
