'use strict';

// Consumes a topic with ali-ons, and sends back what comes for the first time.
//
// Arguments: name server, consumer group, topic, messages to take, seconds at most. Prints one line of JSON: messages
// taken, and the most redeliveries that a message said it had.

const httpclient = require('urllib');
const { Consumer } = require('ali-ons');

const silent = { debug() {}, info() {}, warn() {}, error() {}, write() {} };

async function main([namesrv, consumerGroup, topic, messages, seconds]) {
  const taken = new Set();
  let most = 0;
  const consumer = new Consumer({ httpclient, nameSrv: namesrv, consumerGroup, logger: silent });
  consumer.on('error', () => {}); // the messages sent back are errors to it
  const done = new Promise(resolve => {
    setTimeout(resolve, Number(seconds) * 1000);
    consumer.subscribe(topic, '*', async message => {
      if (message.reconsumeTimes === 0) throw new Error('again');
      most = Math.max(most, message.reconsumeTimes);
      taken.add(message.body.toString());
      if (taken.size === Number(messages)) resolve();
    });
  });
  await consumer.ready();
  await done;
  console.log(JSON.stringify({ taken: taken.size, most_redeliveries: most }));
  process.exit(0);
}

main(process.argv.slice(2)).catch(error => {
  console.error(error);
  process.exit(1);
});
