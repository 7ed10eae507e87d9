'use strict';

// Consumes so many messages of a queue with amqplib and acknowledges each.
//
// Arguments: host, port, queue, count. Prints "started" when it consumes, and at its end one line of JSON: of each
// message, in their order, what the client says of its properties, and its body in hex.

const amqp = require('amqplib');
const { inspect } = require('util');

async function main([host, port, queue, count]) {
  const connection = await amqp.connect({ hostname: host, port: Number(port), heartbeat: 0 });
  const channel = await connection.createChannel();
  const seen = [];
  await new Promise(resolve => {
    channel.consume(queue, message => {
      const properties = inspect(message.properties, { depth: null, sorted: true, breakLength: Infinity });
      seen.push([properties, message.content.toString('hex')]);
      channel.ack(message);
      if (seen.length === Number(count)) resolve();
    }).then(() => console.log('started'));
  });
  await channel.close();
  await connection.close();
  console.log(JSON.stringify(seen));
}

main(process.argv.slice(2)).catch(error => {
  console.error(error);
  process.exit(1);
});
