import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * Consumes one topic from its start in every way: all, by tag, broadcast, by lite pull, and shared by two.
 *
 * <p>Arguments: name server, topic, messages in the topic, messages with tag b, seconds at most for each. Prints one
 * line of JSON: the bodies each of them saw (their first word, with the number of messages), sorted.
 */
public final class EveryKindOfConsumer {
    private static String namesrv;
    private static String topic;
    private static long waitMillis;

    private EveryKindOfConsumer() {}

    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Exception error) {
            // The client's own threads would keep a failed program alive.
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        namesrv = args[0];
        topic = args[1];
        int all = Integer.parseInt(args[2]);
        int tagged = Integer.parseInt(args[3]);
        waitMillis = Long.parseLong(args[4]) * 1000;
        Map<String, Map<String, Integer>> report = new LinkedHashMap<>();
        report.put("concurrent", push("concurrent", "*", all, MessageModel.CLUSTERING));
        report.put("tagged", push("tagged", "b || unknown", tagged, MessageModel.CLUSTERING));
        report.put("broadcast", push("broadcast", "*", all, MessageModel.BROADCASTING));
        report.put("lite pull", litePull(all));
        report.put("shared", shared(all));
        System.out.println(JSON.toJSONString(report));
    }

    private static DefaultMQPushConsumer consumer(String name, String instance, String tags, MessageModel model)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name + "-of-" + topic);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMessageModel(model);
        consumer.subscribe(topic, tags);
        return consumer;
    }

    private static Map<String, Integer> push(String name, String tags, int count, MessageModel model)
        throws Exception {
        Collection<String> seen = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer consumer = consumer(name, name, tags, model);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            note(seen, messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(() -> seen.size() >= count);
        consumer.shutdown();
        return words(seen);
    }

    private static Map<String, Integer> litePull(int count) throws Exception {
        Collection<String> seen = new ConcurrentSkipListSet<>();
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("lite-pull-of-" + topic);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        long end = System.currentTimeMillis() + waitMillis;
        while (seen.size() < count && System.currentTimeMillis() < end) {
            note(seen, consumer.poll(500));
        }
        consumer.shutdown();
        return words(seen);
    }

    private static Map<String, Integer> shared(int count) throws Exception {
        Collection<String> seen = new ConcurrentSkipListSet<>();
        MessageListenerConcurrently listener = (messages, context) -> {
            note(seen, messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
        DefaultMQPushConsumer one = consumer("shared", "one", "*", MessageModel.CLUSTERING);
        DefaultMQPushConsumer two = consumer("shared", "two", "*", MessageModel.CLUSTERING);
        one.registerMessageListener(listener);
        two.registerMessageListener(listener);
        one.start();
        two.start();
        await(() -> seen.size() >= count && queues(one) > 0 && queues(two) > 0 && queues(one) + queues(two) == 4);
        Map<String, Integer> words = words(seen);
        words.put("queues of one", queues(one));
        words.put("queues of two", queues(two));
        one.shutdown();
        two.shutdown();
        return words;
    }

    private static int queues(DefaultMQPushConsumer consumer) {
        return (int) consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic)).count();
    }

    private static void note(Collection<String> seen, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.US_ASCII);
            seen.add(body.substring(0, Math.min(body.length(), 12)) + " " + message.getQueueId() + " " + message.getQueueOffset());
        }
    }

    private static Map<String, Integer> words(Collection<String> seen) {
        Map<String, Integer> words = new TreeMap<>();
        for (String each : seen) {
            words.merge(each.split(" ")[0], 1, Integer::sum);
        }
        return words;
    }

    private static void await(BooleanSupplier done) throws InterruptedException {
        long end = System.currentTimeMillis() + waitMillis;
        while (!done.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
    }
}
