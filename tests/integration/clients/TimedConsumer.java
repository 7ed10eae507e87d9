import com.alibaba.fastjson2.JSON;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes a topic from its start and records the time of each message.
 *
 * <p>Arguments: name server, consumer group, topic, messages to take, seconds at most. Prints one line of JSON: the
 * time of each message's first delivery in milliseconds since 1970, and the number of redeliveries.
 */
public final class TimedConsumer {
    private TimedConsumer() {}

    public static void main(String[] args) throws Exception {
        CountDownLatch toTake = new CountDownLatch(Integer.parseInt(args[3]));
        Set<String> taken = ConcurrentHashMap.newKeySet();
        ConcurrentLinkedQueue<Long> times = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<String> again = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.currentTimeMillis();
            for (MessageExt message : messages) {
                if (taken.add(message.getQueueId() + " " + message.getQueueOffset())) {
                    times.add(now);
                    toTake.countDown();
                } else {
                    again.add(message.getMsgId());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        toTake.await(Long.parseLong(args[4]), TimeUnit.SECONDS);
        consumer.shutdown();
        System.out.println(JSON.toJSONString(Map.of("times_ms", List.copyOf(times), "again", again.size())));
        System.exit(0);
    }
}
