'use strict';

// Publishes and consumes with rhea, see the README.

const crypto = require('node:crypto');
const fs = require('node:fs');
const rhea = require('rhea');

const WAIT_FOR_ANSWERS_MS = 30_000;
const [host, port, text] = process.argv.slice(2);
const ask = JSON.parse(text);
const container = rhea.create_container();
let started = 0n;
let over = false;

function countNow(counts) {
  const second = Number((process.hrtime.bigint() - started) / 1_000_000_000n);
  while (counts.length <= second) counts.push(0);
  counts[second] += 1;
}

class Publishing {
  constructor(asked) {
    this.ask = asked;
    this.report = { sent: 0, accepted: [], rejected: [], released: [], reasons: [], error: '' };
    this.unanswered = new Map();
    this.over = false;
  }

  open(connection) {
    const settled = this.ask.settled ? 1 : 0;
    this.link = connection.open_sender({
      target: { address: this.ask.publish || undefined }, snd_settle_mode: settled, autosettle: true,
    });
    this.link.on('sendable', () => this.goOn());
    for (const name of ['accepted', 'rejected', 'released', 'modified']) {
      this.link.on(name, context => this.answered(context.delivery, name));
    }
  }

  // A message without credit would block the session's other links.
  goOn() {
    const { report, ask: asked } = this;
    while (!this.over && report.sent < (asked.count ?? Infinity) && this.unanswered.size < (asked.outstanding ?? 50)
      && report.sent <= Number(process.hrtime.bigint() - started) / 1e9 * (asked.per_s ?? Infinity) && this.link.sendable() && this.link.credit > report.sent - this.link.delivery_count) {
      const number = report.sent;
      const body = Buffer.alloc(asked.size ?? 100, '.');
      body.write(`${number} `);
      const message = { body: rhea.message.data_section(body) };
      if (asked.to) message.to = asked.to[number % asked.to.length];
      const delivery = this.link.send(message);
      report.sent += 1;
      if (asked.settled) countNow(report.accepted);
      else this.unanswered.set(delivery.id, number);
    }
    finish();
  }

  answered(delivery, name) {
    if (!this.unanswered.has(delivery.id)) return;
    const number = this.unanswered.get(delivery.id);
    this.unanswered.delete(delivery.id);
    if (name === 'accepted') countNow(this.report.accepted);
    else {
      this.report[name === 'rejected' ? name : 'released'].push(number);
      const error = delivery.remote_state?.error;
      const reason = error ? `${error.condition}: ${error.description}` : '';
      if (!this.report.reasons.includes(reason) && this.report.reasons.length < 5) this.report.reasons.push(reason);
    }
    this.goOn();
  }

  get done() {
    const sent = this.over || this.report.sent >= (this.ask.count ?? Infinity);
    return Boolean(this.report.error) || (sent && this.unanswered.size === 0);
  }
}

class Consuming {
  constructor(asked) {
    this.ask = asked;
    this.report = { received: [], numbers: [], error: '' };
    this.digest = crypto.createHash('sha256');
    this.over = false;
    this.drained = false;
  }

  open(connection) {
    this.link = connection.open_receiver({ source: { address: this.ask.consume }, credit_window: 0, autoaccept: false });
    this.link.on('receiver_open', () => {
      this.link.add_credit(this.ask.drain ?? this.ask.credit ?? 10);
      if (this.ask.drain) this.link.drain_credit();
    });
    this.link.on('receiver_drained', () => { this.drained = true; finish(); });
    this.link.on('message', context => {
      const body = context.message.body.content;
      this.digest.update(body);
      this.report.numbers.push(Number(body.toString('latin1').split(' ', 1)[0]));
      countNow(this.report.received);
      context.delivery.accept();
      const credit = this.ask.credit ?? 10;
      if (this.ask.drain === undefined && this.link.credit <= credit / 2) this.link.add_credit(credit - this.link.credit);
      if (this.ask.drain === this.report.numbers.length) this.drained = true;
      finish();
    });
  }

  goOn() { finish(); }

  get done() {
    if (this.ask.drain !== undefined) return this.drained || Boolean(this.report.error);
    return this.over || Boolean(this.report.error) || this.report.numbers.length >= (this.ask.count ?? Infinity);
  }
}

const links = ask.links.map(link => (link.publish === undefined ? new Consuming(link) : new Publishing(link)));
const connection = container.connect({
  host, port: Number(port), username: 'guest', password: 'guest', reconnect: false,
  idle_time_out: ask.idle_s ? ask.idle_s * 1000 : undefined,
});

function finish() {
  if (over || !links.every(link => link.done)) return;
  over = true;
  for (const link of links) link.link.close();
  connection.close();
}

function report(error) {
  for (const link of links) {
    if (error) link.report.error ||= error;
    if (link.digest) link.report.sha256 = link.digest.digest('hex');
  }
  fs.writeSync(1, `${JSON.stringify(links.map(link => link.report))}\n`);
  process.exit(0);
}

connection.on('connection_open', () => {
  started = process.hrtime.bigint();
  for (const link of links) {
    link.open(connection);
    for (const name of ['sender_error', 'receiver_error']) {
      link.link.on(name, context => { link.report.error = String(context[name.split('_')[0]].error); finish(); });
    }
    if (link.ask.per_s) setInterval(() => link.goOn(), 10);
    if (link.ask.seconds !== undefined) {
      setTimeout(() => {
        link.over = true;
        link.goOn();
        setTimeout(() => { if (!link.done) { link.report.error = 'no answers'; finish(); } }, WAIT_FOR_ANSWERS_MS);
      }, link.ask.seconds * 1000);
    }
  }
});
connection.on('connection_error', context => report(String(context.connection.error)));
connection.on('disconnected', context => report(over ? '' : `disconnected: ${context.error}`));
connection.on('connection_close', () => report(''));
