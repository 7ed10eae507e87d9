'use strict';

// Prints amqplib's reports to its user, until the connection is gone.
//
// Arguments: host, port, a queue, a queue that refuses. It publishes to the second one, then to a missing queue, as
// mandatory, prints `started`, and then publishes to the first one every 50 ms. Prints a line of JSON for each report:
// its subject, the event or the error's name, its text.

const amqp = require('amqplib');

const say = (about, what, text) => console.log(JSON.stringify({ about, what, text: String(text) }));

async function main([host, port, queue, refusing]) {
  const connection = await amqp.connect({ hostname: host, port: Number(port) });
  connection.on('blocked', reason => say('blocked', 'event', reason));
  connection.on('unblocked', () => say('unblocked', 'event', ''));
  connection.on('error', error => say('error', error.name, error.message));
  const closed = new Promise(resolve => connection.on('close', error => {
    say('lost', error ? error.name : 'event', error ? error.message : '');
    resolve();
  }));
  const channel = await connection.createConfirmChannel();
  channel.on('return', message => say('unroutable', 'event', message.fields.replyText));
  channel.on('error', () => {});
  const publish = (key, options) => new Promise((resolve, reject) => {
    channel.publish('', key, Buffer.from('x'), options, error => (error ? reject(error) : resolve()));
  });
  for (const [about, key, options] of [['refused', refusing, {}], ['unroutable', 'nowhere', { mandatory: true }]]) {
    try {
      await publish(key, options);
      say(about, 'ack', '');
    } catch (error) {
      say(about, error.name, error.message);
    }
  }
  console.log('started');
  const publishing = (async () => {
    try {
      for (;;) {
        await publish(queue, {});
        await new Promise(resolve => setTimeout(resolve, 50));
      }
    } catch (error) {
      say('publish', error.name, error.message);
    }
  })();
  await closed;
  await Promise.race([publishing, new Promise(resolve => setTimeout(resolve, 2000))]);
  process.exit(0);
}

main(process.argv.slice(2)).catch(error => {
  console.error(error);
  process.exit(1);
});
