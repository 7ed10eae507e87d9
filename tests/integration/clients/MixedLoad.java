import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends, consumes by push and by lite pull, and asks and answers, all in one process, whatever becomes of its broker.
 *
 * <p>Arguments: name server, topic that is sent to, topic that is asked on, a prefix of the groups' names. Prints
 * {@code started}, and then a line of JSON each second: what was done in it, by kind. It runs until it is ended.
 */
public final class MixedLoad {
    private static final byte[] BODY = "x".repeat(128).getBytes(StandardCharsets.US_ASCII);
    private static final int SEND_EVERY_MILLIS = 20;
    private static final int ASK_EVERY_MILLIS = 100;
    private static final int TIMEOUT_MILLIS = 3000;
    private static final int SENDERS = 2;
    private static final Map<String, AtomicInteger> DONE = new ConcurrentSkipListMap<>();

    private MixedLoad() {}

    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String sends = args[1];
        String asks = args[2];
        String prefix = args[3];
        DefaultMQProducer producer = producer(namesrv, prefix + "-sender");
        DefaultMQProducer asking = producer(namesrv, prefix + "-asker");
        DefaultMQProducer answering = producer(namesrv, prefix + "-answerer");
        consume(namesrv, prefix + "-push", sends, message -> count("push"));
        consume(namesrv, prefix + "-answers", asks, message -> {
            answering.send(MessageUtil.createReplyMessage(message, BODY), TIMEOUT_MILLIS);
        });
        DefaultLitePullConsumer lite = new DefaultLitePullConsumer(prefix + "-lite");
        lite.setNamesrvAddr(namesrv);
        lite.setInstanceName(prefix + "-lite");
        lite.subscribe(sends, "*");
        lite.start();
        for (int i = 0; i < SENDERS; i++) {
            forever(SEND_EVERY_MILLIS, () -> {
                producer.send(new Message(sends, BODY));
                count("send");
            });
        }
        forever(ASK_EVERY_MILLIS, () -> {
            asking.request(new Message(asks, BODY), TIMEOUT_MILLIS);
            count("request");
        });
        forever(0, () -> lite.poll(500).forEach(message -> count("lite")));
        System.out.println("started");
        while (true) {
            Thread.sleep(1000);
            Map<String, Object> second = new TreeMap<>();
            for (String kind : new String[] {"lite", "push", "request", "send"}) {
                second.put(kind, DONE.computeIfAbsent(kind, key -> new AtomicInteger()).getAndSet(0));
            }
            second.put("at_ms", System.currentTimeMillis());
            System.out.println(JSON.toJSONString(second));
        }
    }

    private static DefaultMQProducer producer(String namesrv, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group);
        producer.start();
        return producer;
    }

    private static void consume(String namesrv, String group, String topic, Take take) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    take.take(message);
                } catch (Exception error) {
                    // What matters is that the asker gets no answer.
                    count("failed");
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static void forever(int everyMillis, Act act) {
        Thread thread = new Thread(() -> {
            long next = System.currentTimeMillis();
            while (true) {
                try {
                    act.act();
                    // At a pace of its own: how long an answer takes is not the question.
                    long now = System.currentTimeMillis();
                    next = Math.max(next + everyMillis, now);
                    Thread.sleep(next - now);
                } catch (InterruptedException interrupted) {
                    return;
                } catch (Exception error) {
                    // The broker is away; a client at its wits' end tries again, but not flat out.
                    pause();
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static void count(String kind) {
        DONE.computeIfAbsent(kind, key -> new AtomicInteger()).incrementAndGet();
    }

    private interface Act {
        void act() throws Exception;
    }

    private interface Take {
        void take(MessageExt message) throws Exception;
    }
}
