import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends to each topic at its own rate, whatever the answers. Each topic has a producer and a connection.
 *
 * <p>Arguments: name server, seconds, then topic, messages a second and the second of its start, for each topic. Prints
 * one line of JSON: for each topic the due, stored and lost messages, losses by second, the first failure, and the
 * median and the 99th percentile of the milliseconds from a stored send's due time to its answer.
 * There are no retries.
 */
public final class PacedProducer {
    private static final int SEND_TIMEOUT_MILLIS = 10_000;
    private static final byte[] BODY = "x".repeat(128).getBytes(StandardCharsets.US_ASCII);

    private PacedProducer() {}

    public static void main(String[] args) throws Exception {
        int seconds = Integer.parseInt(args[1]);
        Map<String, Sender> report = new LinkedHashMap<>();
        for (int i = 2; i < args.length; i += 3) {
            int perSecond = Integer.parseInt(args[i + 1]);
            report.put(args[i], new Sender(args[0], args[i], perSecond, Integer.parseInt(args[i + 2]), seconds));
        }
        for (Sender sender : report.values()) {
            sender.warmUp();
        }
        long start = System.nanoTime();
        for (Sender sender : report.values()) {
            sender.start(start);
        }
        for (Sender sender : report.values()) {
            sender.finish();
        }
        System.out.println(JSON.toJSONString(report));
        System.exit(0);
    }

    /** The outcomes of one topic's sends. Its fields are the report. */
    public static final class Sender {
        public final int sent;
        public int stored;
        public int lost;
        public final int[] refusedBySecond;
        public String failure;
        public double medianMillis;
        public double p99Millis;
        private final DefaultMQProducer producer;
        private final String topic;
        private final int perSecond;
        private final int startSecond;
        private final long[] tookNanos;
        private final Semaphore answers = new Semaphore(0);

        Sender(String nameServer, String topic, int perSecond, int startSecond, int seconds) throws Exception {
            this.topic = topic;
            this.perSecond = perSecond;
            this.startSecond = startSecond;
            sent = perSecond * (seconds - startSecond);
            tookNanos = new long[sent];
            refusedBySecond = new int[seconds];
            producer = new DefaultMQProducer("paced-" + topic);
            producer.setInstanceName(topic);
            producer.setNamesrvAddr(nameServer);
            producer.setRetryTimesWhenSendAsyncFailed(0);
            producer.start();
        }

        /** The JVM's first calls are slow. */
        void warmUp() throws Exception {
            for (int i = 0; i < 20; i++) {
                producer.send(new Message(topic, BODY), SEND_TIMEOUT_MILLIS);
            }
        }

        void start(long start) {
            Thread thread = new Thread(() -> run(start));
            thread.setDaemon(true);
            thread.start();
        }

        private void run(long start) {
            for (int number = 0; number < sent; number++) {
                long due = start + TimeUnit.SECONDS.toNanos(startSecond) + number * 1_000_000_000L / perSecond;
                try {
                    TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                    send(due, startSecond + number / perSecond);
                } catch (Exception error) {
                    answered(null, due, startSecond + number / perSecond, error.toString());
                }
            }
        }

        private void send(long due, int second) throws Exception {
            producer.send(
                    new Message(topic, BODY),
                    new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            answered(result.getSendStatus(), due, second, result.getSendStatus().name());
                        }

                        @Override
                        public void onException(Throwable error) {
                            answered(null, due, second, error.toString());
                        }
                    },
                    SEND_TIMEOUT_MILLIS);
        }

        private synchronized void answered(SendStatus status, long due, int second, String what) {
            if (status == SendStatus.SEND_OK) {
                tookNanos[stored++] = System.nanoTime() - due;
            } else {
                lost++;
                refusedBySecond[second]++;
                failure = failure == null ? what : failure;
            }
            answers.release();
        }

        void finish() throws InterruptedException {
            answers.acquire(sent);
            Arrays.sort(tookNanos, 0, stored);
            medianMillis = millis(50);
            p99Millis = millis(99);
        }

        private double millis(int percent) {
            return stored == 0 ? 0 : tookNanos[(stored - 1) * percent / 100] / 1e6;
        }
    }
}
