import com.google.gson.Gson;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.TimeUnit;

/**
 * Publishes persistent messages to each queue at its own rate, whatever the answers, over one connection with a confirm
 * channel for each queue.
 *
 * <p>Arguments: host, port, seconds, then queue, messages a second and the second of its start, for each queue. Prints
 * one line of JSON: for each queue the due, stored (acked) and lost (nacked or unanswered) messages, nacks by second,
 * and the median and the 99th percentile of the milliseconds from an acked publish's due time to its confirm.
 */
public final class Paced {
    private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(10);

    private static final byte[] BODY = new byte[128];

    private Paced() {}

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(args[0]);
        factory.setPort(Integer.parseInt(args[1]));
        factory.setAutomaticRecoveryEnabled(false);
        int seconds = Integer.parseInt(args[2]);
        Connection connection = factory.newConnection();
        Map<String, Sender> report = new LinkedHashMap<>();
        for (int i = 3; i < args.length; i += 3) {
            Channel channel = connection.createChannel();
            int perSecond = Integer.parseInt(args[i + 1]);
            report.put(args[i], new Sender(channel, args[i], perSecond, Integer.parseInt(args[i + 2]), seconds));
        }
        for (Sender sender : report.values()) {
            sender.warmUp();
        }
        long start = System.nanoTime();
        for (Sender sender : report.values()) {
            sender.start(start);
        }
        long end = start + TimeUnit.SECONDS.toNanos(seconds);
        for (Sender sender : report.values()) {
            sender.finish(end + PATIENCE_NANOS);
        }
        System.out.println(new Gson().toJson(report));
        System.exit(0);
    }

    /** The outcomes of one queue's publishes. Its fields are the report. */
    private static final class Sender {
        final int sent;
        int stored;
        int lost;
        final int[] refusedBySecond;
        double medianMillis;
        double p99Millis;
        private final transient Channel channel;
        private final transient String queue;
        private final transient int perSecond;
        private final transient int startSecond;
        private final transient long[] tookNanos;
        /** Due times of unconfirmed publishes, by number. */
        private final transient ConcurrentNavigableMap<Long, Long> open = new ConcurrentSkipListMap<>();
        private transient long start;

        Sender(Channel channel, String queue, int perSecond, int startSecond, int seconds) throws Exception {
            this.channel = channel;
            this.queue = queue;
            this.perSecond = perSecond;
            this.startSecond = startSecond;
            sent = perSecond * (seconds - startSecond);
            tookNanos = new long[sent];
            refusedBySecond = new int[seconds];
            channel.queueDeclare(queue, true, false, false, null);
            channel.confirmSelect();
        }

        /** The JVM's first calls are slow. */
        void warmUp() throws Exception {
            for (int i = 0; i < 20; i++) {
                publish();
                channel.waitForConfirms();
            }
            channel.addConfirmListener(
                    (tag, multiple) -> answered(tag, multiple, true), (tag, multiple) -> answered(tag, multiple, false));
        }

        private void publish() throws Exception {
            channel.basicPublish("", queue, MessageProperties.MINIMAL_PERSISTENT_BASIC, BODY);
        }

        void start(long start) {
            this.start = start;
            Thread thread = new Thread(this::run);
            thread.setDaemon(true);
            thread.start();
        }

        private void run() {
            try {
                for (int number = 0; number < sent; number++) {
                    long due = start + TimeUnit.SECONDS.toNanos(startSecond) + number * 1_000_000_000L / perSecond;
                    TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                    open.put(channel.getNextPublishSeqNo(), due);
                    publish();
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
        }

        private synchronized void answered(long tag, boolean multiple, boolean ack) {
            long now = System.nanoTime();
            Map<Long, Long> answered = multiple ? open.headMap(tag, true) : open.subMap(tag, true, tag, true);
            for (long due : answered.values()) {
                if (ack) {
                    tookNanos[stored++] = now - due;
                } else {
                    lost++;
                    refusedBySecond[(int) TimeUnit.NANOSECONDS.toSeconds(due - start)]++;
                }
            }
            answered.clear();
            notifyAll();
        }

        synchronized void finish(long deadline) throws InterruptedException {
            while (stored + lost < sent && System.nanoTime() < deadline) {
                TimeUnit.NANOSECONDS.timedWait(this, deadline - System.nanoTime());
            }
            lost = sent - stored;
            Arrays.sort(tookNanos, 0, stored);
            medianMillis = millis(50);
            p99Millis = millis(99);
        }

        private double millis(int percent) {
            return stored == 0 ? 0 : tookNanos[(stored - 1) * percent / 100] / 1e6;
        }
    }
}
