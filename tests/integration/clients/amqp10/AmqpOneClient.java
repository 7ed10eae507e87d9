import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Publishes and consumes with RabbitMQ's client of AMQP 1.0, see the README. Without settled links and drain. */
public final class AmqpOneClient {
    private static final int WAIT_FOR_ANSWERS_S = 30;

    private AmqpOneClient() {}

    public static void main(String[] args) throws Exception {
        List<Link> links = new ArrayList<>();
        Matcher objects = Pattern.compile("\\{[^{}]*\\}").matcher(args[2].substring(args[2].indexOf('[')));
        while (objects.find()) {
            links.add(new Link(objects.group()));
        }
        try (Environment environment = new AmqpEnvironmentBuilder().build()) {
            Connection connection = environment.connectionBuilder()
                    .host(args[0]).port(Integer.parseInt(args[1])).username("guest").password("guest")
                    .recovery().activated(false).connectionBuilder().build();
            long started = System.nanoTime();
            List<Thread> threads = new ArrayList<>();
            for (Link link : links) {
                Thread thread = new Thread(() -> link.run(connection, started));
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            connection.close();
        }
        StringBuilder report = new StringBuilder();
        for (Link link : links) {
            report.append(report.isEmpty() ? "[" : ", ").append(link.report());
        }
        System.out.println(report.append("]"));
        System.exit(0);
    }

    /** One link of the client. */
    private static final class Link {
        private final String ask;
        private final String publish;
        private final String consume;
        private final List<String> to = new ArrayList<>();
        private final List<Integer> perSecond = new ArrayList<>();
        private final List<Integer> rejected = new ArrayList<>();
        private final List<Integer> released = new ArrayList<>();
        private final List<Integer> numbers = new ArrayList<>();
        private final Set<String> reasons = new TreeSet<>();
        private int sent;
        private String error = "";
        private String digest = "";
        private long started;

        Link(String ask) {
            this.ask = ask;
            publish = text("publish");
            consume = text("consume");
            Matcher list = Pattern.compile("\"to\": *\\[([^]]*)\\]").matcher(ask);
            if (list.find()) {
                Matcher each = Pattern.compile("\"([^\"]*)\"").matcher(list.group(1));
                while (each.find()) {
                    to.add(each.group(1));
                }
            }
        }

        void run(Connection connection, long startedNanos) {
            started = startedNanos;
            try {
                if (publish != null) {
                    publish(connection);
                } else {
                    consume(connection);
                }
            } catch (Exception failed) {
                error = failed.toString();
            }
        }

        private void publish(Connection connection) throws Exception {
            int atOnce = number("outstanding", 50);
            Semaphore free = new Semaphore(atOnce);
            // Without credit the client waits. Its own bound is for unlimited links.
            var builder = connection.publisherBuilder().publishTimeout(Duration.ofSeconds(WAIT_FOR_ANSWERS_S));
            Publisher publisher = (publish.isEmpty() ? builder : queue(builder)).build();
            long endNanos = number("seconds", 1 << 20) * 1_000_000_000L;
            int most = number("count", Integer.MAX_VALUE);
            while (sent < most && System.nanoTime() - started < endNanos) {
                free.acquire();
                int number = sent++;
                long dueNanos = started + number * 1_000_000_000L / number("per_s", Integer.MAX_VALUE);
                if (dueNanos > System.nanoTime()) {
                    TimeUnit.NANOSECONDS.sleep(dueNanos - System.nanoTime());
                }
                byte[] body = new byte[number("size", 100)];
                Arrays.fill(body, (byte) '.');
                byte[] head = (number + " ").getBytes(StandardCharsets.US_ASCII);
                System.arraycopy(head, 0, body, 0, head.length);
                Message message = publisher.message(body);
                if (!to.isEmpty()) {
                    message = message.toAddress().queue(name(to.get(number % to.size()))).message();
                }
                publisher.publish(message, context -> {
                    answered(number, context);
                    free.release();
                });
            }
            if (!free.tryAcquire(atOnce, WAIT_FOR_ANSWERS_S, TimeUnit.SECONDS)) {
                error = "no answers";
            }
            publisher.close();
        }

        private com.rabbitmq.client.amqp.PublisherBuilder queue(com.rabbitmq.client.amqp.PublisherBuilder builder) {
            return builder.queue(name(publish));
        }

        private synchronized void answered(int number, Publisher.Context context) {
            if (context.status() == Publisher.Status.ACCEPTED) {
                countNow();
                return;
            }
            (context.status() == Publisher.Status.REJECTED ? rejected : released).add(number);
            if (reasons.size() < 5) {
                reasons.add(String.valueOf(context.failureCause()));
            }
        }

        private void consume(Connection connection) throws Exception {
            MessageDigest sha = MessageDigest.getInstance("SHA-256");
            int most = number("count", Integer.MAX_VALUE);
            Semaphore done = new Semaphore(0);
            var consumer = connection.consumerBuilder().queue(name(consume)).initialCredits(number("credit", 10))
                    .messageHandler((context, message) -> {
                        synchronized (this) {
                            sha.update(message.body());
                            String body = new String(message.body(), StandardCharsets.ISO_8859_1);
                            numbers.add(Integer.parseInt(body.substring(0, body.indexOf(' '))));
                            countNow();
                            context.accept();
                            if (numbers.size() >= most) {
                                done.release();
                            }
                        }
                    }).build();
            done.tryAcquire(number("seconds", 1 << 20), TimeUnit.SECONDS);
            consumer.close();
            digest = HexFormat.of().formatHex(sha.digest());
        }

        private void countNow() {
            int second = (int) ((System.nanoTime() - started) / 1_000_000_000L);
            while (perSecond.size() <= second) {
                perSecond.add(0);
            }
            perSecond.set(second, perSecond.get(second) + 1);
        }

        private static String name(String address) {
            return address.substring(address.lastIndexOf('/') + 1);
        }

        private String text(String key) {
            Matcher found = Pattern.compile("\"" + key + "\": *\"([^\"]*)\"").matcher(ask);
            return found.find() ? found.group(1) : null;
        }

        private int number(String key, int otherwise) {
            Matcher found = Pattern.compile("\"" + key + "\": *(\\d+)").matcher(ask);
            return found.find() ? Integer.parseInt(found.group(1)) : otherwise;
        }

        private static String quoted(String text) {
            return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + '"';
        }

        synchronized String report() {
            if (publish == null) {
                return "{\"received\": " + perSecond + ", \"numbers\": " + numbers + ", \"sha256\": " + quoted(digest)
                        + ", \"error\": " + quoted(error) + "}";
            }
            return "{\"sent\": " + sent + ", \"accepted\": " + perSecond + ", \"rejected\": " + rejected
                    + ", \"released\": " + released + ", \"reasons\": " + reasons.stream().map(Link::quoted).toList()
                    + ", \"error\": " + quoted(error) + "}";
        }
    }
}
