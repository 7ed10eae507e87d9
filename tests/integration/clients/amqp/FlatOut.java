import com.google.gson.Gson;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;

/**
 * Publishes to several queues in turn over one channel, with many unconfirmed publishes.
 *
 * <p>Arguments: host, port, seconds, queue… The body of a message is its number, for each queue from 0. Prints one line
 * of JSON: for each queue the acked and nacked numbers, and other errors. With DELIVERY_MODE=2 in the
 * environment messages are persistent. AT_ONCE is the number of unconfirmed publishes to all queues. With TLS=1 it uses
 * TLS, with the machine's trust store and key store, and verifies the host's name.
 */
public final class FlatOut {
    private static final int AT_ONCE = Integer.parseInt(System.getenv().getOrDefault("AT_ONCE", "500"));

    private FlatOut() {}

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(args[0]);
        factory.setPort(Integer.parseInt(args[1]));
        factory.setAutomaticRecoveryEnabled(false);
        if ("1".equals(System.getenv("TLS"))) {
            factory.useSslProtocol(SSLContext.getDefault());
            factory.enableHostnameVerification();
        }
        long runNanos = Long.parseLong(args[2]) * 1_000_000_000L;
        BasicProperties properties =
                "2".equals(System.getenv("DELIVERY_MODE")) ? MessageProperties.MINIMAL_PERSISTENT_BASIC : null;
        Map<String, Counts> report = new LinkedHashMap<>();
        for (int i = 3; i < args.length; i++) {
            report.put(args[i], new Counts());
        }
        ConcurrentNavigableMap<Long, Sent> open = new ConcurrentSkipListMap<>();
        Semaphore free = new Semaphore(AT_ONCE);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            for (String queue : report.keySet()) {
                channel.queueDeclare(queue, true, false, false, null);
            }
            channel.confirmSelect();
            channel.addConfirmListener(
                    (tag, multiple) -> answered(open, tag, multiple, true, report, free),
                    (tag, multiple) -> answered(open, tag, multiple, false, report, free));
            long start = System.nanoTime();
            for (int number = 0; System.nanoTime() - start < runNanos; number++) {
                for (String queue : report.keySet()) {
                    free.acquire();
                    open.put(channel.getNextPublishSeqNo(), new Sent(queue, number));
                    byte[] body = String.valueOf(number).getBytes(StandardCharsets.US_ASCII);
                    channel.basicPublish("", queue, properties, body);
                }
            }
            if (!free.tryAcquire(AT_ONCE, 60, TimeUnit.SECONDS)) {
                report.values().iterator().next().failed.add("no answer to " + open);
            }
        }
        System.out.println(new Gson().toJson(report));
    }

    private static void answered(
            ConcurrentNavigableMap<Long, Sent> open,
            long tag,
            boolean multiple,
            boolean ack,
            Map<String, Counts> report,
            Semaphore free) {
        Map<Long, Sent> answered =
                multiple ? open.headMap(tag, true) : open.subMap(tag, true, tag, true);
        for (Sent sent : answered.values()) {
            Counts counts = report.get(sent.queue);
            (ack ? counts.acked : counts.nacked).add(sent.number);
            free.release();
        }
        answered.clear();
    }

    /** A publish without an answer yet. */
    private record Sent(String queue, int number) {}

    /** The outcomes of one queue's publishes. Its fields are the report. */
    private static final class Counts {
        final List<Integer> acked = new ArrayList<>();
        final List<Integer> nacked = new ArrayList<>();
        final List<String> failed = new ArrayList<>();
    }
}
