'use strict';

// Sends to several topics at once with ali-ons, over one producer, as fast as the answers come.
//
// Arguments: name server, producer group, seconds, warm-up messages, topic… The warm-up goes to the last topic and is
// counted there. The seconds begin after it. Prints one line of JSON: for each topic the numbers of stored messages,
// refusals (SYSTEM_BUSY, with the first remark) and other errors (with the first message).

const httpclient = require('urllib');
const { Message, Producer } = require('ali-ons');

const SYSTEM_BUSY = 2;
const BODY = 'x'.repeat(128);
// A send that timed out on a busy machine may have been stored, and losses could not be counted.
const SEND_TIMEOUT_MS = 30_000;
const silent = { debug() {}, info() {}, warn() {}, error() {}, write() {} };

async function send(producer, topic, counts) {
  try {
    const result = await producer.send(new Message(topic, '*', BODY));
    if (result.sendStatus === 'SEND_OK') {
      counts.stored += 1;
    } else {
      counts.failed += 1;
      counts.failure ??= result.sendStatus;
    }
  } catch (error) {
    if (error.code === SYSTEM_BUSY) {
      counts.refused += 1;
      counts.code ??= error.code;
      counts.remark ??= error.message;
    } else {
      counts.failed += 1;
      counts.failure ??= `${error.name} ${error.code}: ${error.message}`;
    }
  }
}

async function main([namesrv, producerGroup, seconds, warmUp, ...topics]) {
  const report = Object.fromEntries(topics.map(topic => [topic, { stored: 0, refused: 0, failed: 0 }]));
  const producer = new Producer({
    httpclient,
    nameSrv: namesrv,
    producerGroup,
    sendMsgTimeout: SEND_TIMEOUT_MS,
    logger: silent,
  });
  producer.on('error', () => {}); // connection errors reach the sends, which count them
  await producer.ready();
  const last = topics[topics.length - 1];
  for (let i = 0; i < Number(warmUp); i += 1) await send(producer, last, report[last]);
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
