'use strict';

// Publishes to several queues in turn with amqplib over one confirm channel, with many unconfirmed publishes.
//
// Arguments: host, port, seconds, queue… The body of a message is its number, for each queue from 0. Prints one line of
// JSON: for each queue the acked and nacked numbers, and other errors. With DELIVERY_MODE=2 in the environment messages
// are persistent. AT_ONCE is the number of unconfirmed publishes to all queues.

const amqp = require('amqplib');

const AT_ONCE = Number(process.env.AT_ONCE || 500);
const persistent = process.env.DELIVERY_MODE === '2';

async function main([host, port, seconds, ...queues]) {
  const connection = await amqp.connect({ hostname: host, port: Number(port), heartbeat: 0 });
  const channel = await connection.createConfirmChannel();
  for (const queue of queues) await channel.assertQueue(queue, { durable: true });
  const report = Object.fromEntries(queues.map(queue => [queue, { acked: [], nacked: [], failed: [] }]));
  channel.on('error', error => report[queues[0]].failed.push(String(error)));
  const end = process.hrtime.bigint() + BigInt(seconds) * 1_000_000_000n;
  let waiting = 0;
  let wake = () => {};
  for (let number = 0; process.hrtime.bigint() < end; number += 1) {
    for (const queue of queues) {
      waiting += 1;
      channel.sendToQueue(queue, Buffer.from(String(number)), { persistent }, error => {
        (error ? report[queue].nacked : report[queue].acked).push(number);
        waiting -= 1;
        wake();
      });
    }
    // Nothing is read without a turn of the event loop.
    if (waiting >= AT_ONCE) await new Promise(resolve => { wake = resolve; });
    else if (number % 20 === 0) await new Promise(setImmediate);
  }
  while (waiting > 0) await new Promise(resolve => { wake = resolve; });
  await connection.close();
  console.log(JSON.stringify(report));
}

main(process.argv.slice(2)).catch(error => {
  console.error(error);
  process.exit(1);
});
