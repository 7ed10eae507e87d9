import com.alibaba.fastjson2.JSON;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Sends batches to several topics at once, each as fast as the answers come.
 *
 * <p>Arguments: name server, producer group, seconds, then for each topic its name, the messages of a batch (1 is a
 * message by itself) and the bytes of a body. Prints one line of JSON: for each topic the messages stored, the batches
 * refused (after the client's own attempts) with the first remark, what else went wrong, and the milliseconds from
 * its first answer to its last.
 */
public final class BatchProducer {
    /** A send that timed out on a busy machine may have been stored: then nobody could say what was lost. */
    private static final int SEND_TIMEOUT_MILLIS = 30_000;

    private BatchProducer() {}

    public static void main(String[] args) throws Exception {
        long runNanos = Long.parseLong(args[2]) * 1_000_000_000L;
        DefaultMQProducer producer = new DefaultMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MILLIS);
        // The bytes of a body are those of its frame.
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        Map<String, Sender> report = new LinkedHashMap<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 3; i < args.length; i += 3) {
            Sender sender =
                new Sender(producer, args[i], Integer.parseInt(args[i + 1]), Integer.parseInt(args[i + 2]), runNanos);
            report.put(args[i], sender);
            threads.add(new Thread(sender));
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
        System.out.println(JSON.toJSONString(report));
        System.exit(0);
    }

    /** One topic's batches and what became of them; its public fields are the report. */
    public static final class Sender implements Runnable {
        public int stored;
        public int refused;
        public int failed;
        public String remark;
        public String failure;
        public long millis;
        private final DefaultMQProducer producer;
        private final List<Message> batch;
        private final long runNanos;

        Sender(DefaultMQProducer producer, String topic, int messages, int bodyBytes, long runNanos) {
            this.producer = producer;
            this.runNanos = runNanos;
            byte[] body = new byte[bodyBytes];
            Arrays.fill(body, (byte) 'x');
            batch = Collections.nCopies(messages, new Message(topic, body));
        }

        @Override
        public void run() {
            // The first one finds the route and connects, which takes its time.
            send();
            long start = System.nanoTime();
            while (System.nanoTime() - start < runNanos) {
                send();
            }
            millis = (System.nanoTime() - start) / 1_000_000;
        }

        private void send() {
            try {
                if (batch.size() == 1) {
                    producer.send(batch.get(0));
                } else {
                    producer.send(batch);
                }
                stored += batch.size();
            } catch (MQBrokerException error) {
                refused++;
                remark = remark == null ? error.getErrorMessage() : remark;
            } catch (MQClientException | RemotingException | InterruptedException error) {
                if (error.getCause() instanceof MQBrokerException) {
                    refused++;
                    remark = remark == null ? ((MQBrokerException) error.getCause()).getErrorMessage() : remark;
                } else {
                    failed++;
                    failure = failure == null ? error.toString() : failure;
                }
            }
        }
    }
}
