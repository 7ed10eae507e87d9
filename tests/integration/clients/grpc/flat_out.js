'use strict';

// Sends to several topics at once with RocketMQ 5's Node client, as fast as the answers come. Arguments and report are
// those of GrpcFlatOut.java.

const { Producer } = require('rocketmq-client-nodejs');

const BODY = Buffer.alloc(128, 'x');
const silent = { debug() {}, info() {}, warn() {}, error() {} };

async function send(producer, topic, counts) {
  try {
    await producer.send({ topic, body: BODY });
    counts.stored += 1;
  } catch (error) {
    if (error.name === 'TooManyRequestsException') {
      counts.refused += 1;
      counts.refusal ||= `${error.name}: ${error.message}`;
    } else {
      counts.failed += 1;
      counts.failure ||= `${error.name}: ${error.message}`;
    }
  }
}

async function main([endpoints, tls, attempts, seconds, ...topics]) {
  const report = Object.fromEntries(
    topics.map(topic => [topic, { stored: 0, refused: 0, failed: 0, refusal: '', failure: '' }])
  );
  const producer = new Producer({
    endpoints,
    namespace: '',
    sslEnabled: tls === 'tls',
    // With several, it waits for ever if the Proxy's settings arrive before the last route.
    topics: topics.slice(0, 1),
    maxAttempts: Number(attempts) || undefined,
    requestTimeout: 30_000,
    logger: silent,
  });
  await producer.startup();
  const end = process.hrtime.bigint() + BigInt(seconds) * 1_000_000_000n;
  await Promise.all(topics.map(async topic => {
    while (process.hrtime.bigint() < end) await send(producer, topic, report[topic]);
  }));
  console.log(JSON.stringify(report));
  process.exit(0);
}

main(process.argv.slice(2)).catch(error => {
  console.error(error);
  process.exit(1);
});
