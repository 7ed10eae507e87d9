'use strict';

// Consumes a topic with ali-ons and records the time of each message.
//
// Arguments: name server, consumer group, topic, messages to take, seconds at most. Prints one line of JSON: the time
// of each message's first delivery in milliseconds since 1970, and the number of redeliveries.

const httpclient = require('urllib');
const { Consumer } = require('ali-ons');

const silent = { debug() {}, info() {}, warn() {}, error() {}, write() {} };

async function main([namesrv, consumerGroup, topic, messages, seconds]) {
  const taken = new Set();
  const times = [];
  let again = 0;
  const consumer = new Consumer({ httpclient, nameSrv: namesrv, consumerGroup, logger: silent });
  consumer.on('error', error => console.error(error));
  const done = new Promise(resolve => {
    setTimeout(resolve, Number(seconds) * 1000);
    consumer.subscribe(topic, '*', async message => {
      const place = `${message.queueId} ${message.queueOffset}`;
      if (taken.has(place)) {
        again += 1;
        return;
      }
      taken.add(place);
      times.push(Date.now());
      if (taken.size === Number(messages)) resolve();
    });
  });
  await consumer.ready();
  await done;
  console.log(JSON.stringify({ times_ms: times, again }));
  process.exit(0);
}

main(process.argv.slice(2)).catch(error => {
  console.error(error);
  process.exit(1);
});
