import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Sends to several topics at once, over one producer and so over one connection, as fast as the answers come.
 *
 * <p>Arguments: name server, producer group, seconds, warm-up messages, topic… The warm-up goes to the last topic
 * and is counted there. The seconds begin after it, because a cold JVM is slow. Prints one line of JSON: for each
 * topic the numbers of stored messages, refusals (SYSTEM_BUSY, with the first remark) and other errors (with the first
 * message). With -Dretries=0 every answer is counted, otherwise only the result of the client's own retries.
 */
public final class FlatOutProducer {
    private static final int SYSTEM_BUSY = 2;
    /** A send that timed out on a busy machine may have been stored, and losses could not be counted. */
    private static final int SEND_TIMEOUT_MILLIS = 30_000;
    private static final byte[] BODY = "x".repeat(128).getBytes(StandardCharsets.US_ASCII);

    private FlatOutProducer() {}

    public static void main(String[] args) throws Exception {
        long runNanos = Long.parseLong(args[2]) * 1_000_000_000L;
        int warmUp = Integer.parseInt(args[3]);
        List<Sender> senders = new ArrayList<>();
        Map<String, Sender> report = new LinkedHashMap<>();
        DefaultMQProducer producer = new DefaultMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MILLIS);
        producer.setRetryTimesWhenSendFailed(Integer.getInteger("retries", producer.getRetryTimesWhenSendFailed()));
        for (int i = 4; i < args.length; i++) {
            Sender sender = new Sender(producer, args[i]);
            senders.add(sender);
            report.put(args[i], sender);
        }
        producer.start();
        Sender last = senders.get(senders.size() - 1);
        for (int i = 0; i < warmUp; i++) {
            last.send();
        }
        List<Thread> threads = new ArrayList<>();
        long start = System.nanoTime();
        for (Sender sender : senders) {
            Thread thread = new Thread(() -> {
                while (System.nanoTime() - start < runNanos) {
                    sender.send();
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
        System.out.println(JSON.toJSONString(report));
        System.exit(0);
    }

    /** The outcomes of one topic's sends. Its fields are the report. */
    public static final class Sender {
        public int stored;
        public int refused;
        public int failed;
        public Integer code;
        public String remark;
        public String failure;
        private final DefaultMQProducer producer;
        private final String topic;

        Sender(DefaultMQProducer producer, String topic) {
            this.producer = producer;
            this.topic = topic;
        }

        void send() {
            try {
                SendResult result = producer.send(new Message(topic, BODY));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    stored++;
                } else {
                    fail(result.getSendStatus().name());
                }
            } catch (MQClientException | MQBrokerException | RemotingException | InterruptedException error) {
                MQBrokerException answer = answerIn(error);
                if (answer == null || answer.getResponseCode() != SYSTEM_BUSY) {
                    fail(error.toString());
                } else {
                    refused++;
                    if (remark == null) {
                        code = answer.getResponseCode();
                        remark = answer.getErrorMessage();
                    }
                }
            }
        }

        private void fail(String what) {
            failed++;
            if (failure == null) {
                failure = what;
            }
        }

        /** The broker's answer, which the client wraps after its last attempt. */
        private static MQBrokerException answerIn(Throwable error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof MQBrokerException) {
                    return (MQBrokerException) cause;
                }
            }
            return null;
        }
    }
}
