// Half of amqplib's tests connect to port 5672 of this machine without an option: this redirects them to URL.
const net = require('node:net');

const { connect } = net;
const broker = new URL(process.env.URL);

net.connect = (options, ...rest) =>
  String(options?.port) === '5672'
    ? connect({ ...options, host: broker.hostname, port: broker.port }, ...rest)
    : connect(options, ...rest);
