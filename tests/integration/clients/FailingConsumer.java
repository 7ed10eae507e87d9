import com.alibaba.fastjson2.JSON;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes a topic from its start and sends each message back a number of times before it takes it.
 *
 * <p>Arguments: name server, consumer group, topic, messages to take, failures of each message, maximum seconds,
 * consuming threads, milliseconds per failure.
 * Prints one line of JSON: messages taken, all deliveries, redeliveries through the broker's retry topic, and
 * the client's own ones because it could not send the message back.
 */
public final class FailingConsumer {
    /** Send-backs come again after one second, the first delay level. */
    private static final int SHORTEST_DELAY_LEVEL = 1;

    private FailingConsumer() {}

    public static void main(String[] args) throws Exception {
        // These two determine how soon a new group's retry topic is found.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setPollNameServerInterval(1000);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], "*");
        consumer.setConsumeThreadMin(Integer.parseInt(args[6]));
        consumer.setConsumeThreadMax(Integer.parseInt(args[6]));
        int failures = Integer.parseInt(args[4]);
        long failureMillis = Long.parseLong(args[7]);
        CountDownLatch toTake = new CountDownLatch(Integer.parseInt(args[3]));
        Map<String, AtomicInteger> deliveries = new ConcurrentHashMap<>();
        AtomicInteger all = new AtomicInteger();
        AtomicInteger throughBroker = new AtomicInteger();
        AtomicInteger byClient = new AtomicInteger();
        AtomicInteger taken = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            all.incrementAndGet();
            if (message.getReconsumeTimes() > 0) {
                // Not by the message's own properties, which a failed send-back has changed.
                String queue = context.getMessageQueue().getTopic();
                (queue.startsWith(MixAll.RETRY_GROUP_TOPIC_PREFIX) ? throughBroker : byClient).incrementAndGet();
            }
            int count = deliveries.computeIfAbsent(message.getKeys(), key -> new AtomicInteger()).incrementAndGet();
            if (count <= failures) {
                context.setDelayLevelWhenNextConsume(SHORTEST_DELAY_LEVEL);
                pause(failureMillis);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            if (count == failures + 1) {
                taken.incrementAndGet();
                toTake.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        toTake.await(Long.parseLong(args[5]), TimeUnit.SECONDS);
        consumer.shutdown();
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("taken", taken.get());
        report.put("deliveries", all.get());
        report.put("through_broker", throughBroker.get());
        report.put("by_client", byClient.get());
        System.out.println(JSON.toJSONString(report));
        System.exit(0);
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
