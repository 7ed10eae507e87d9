import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Consumes a topic from its start and records the time of each message.
 *
 * <p>Arguments: endpoints, plain or tls, push or simple, group, topic, messages to take, maximum seconds, failures of
 * each message (push only), and seconds of silence, after which it sends the messages itself. Prints one line of JSON:
 * the time of each delivery in milliseconds since 1970, and a simple consumer's errors.
 */
public final class GrpcConsume {
    private GrpcConsume() {}

    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0])
            .enableSsl(args[1].equals("tls"))
            .build();
        Map<String, FilterExpression> all = Collections.singletonMap(args[4], new FilterExpression("*"));
        CountDownLatch toTake = new CountDownLatch(Integer.parseInt(args[5]));
        long seconds = Long.parseLong(args[6]);
        int failures = Integer.parseInt(args[7]);
        long silence = Long.parseLong(args[8]);
        ConcurrentLinkedQueue<Long> times = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
        if (args[2].equals("push")) {
            PushConsumer consumer = provider.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(args[3])
                .setSubscriptionExpressions(all)
                .setMessageListener(view -> {
                    times.add(System.currentTimeMillis());
                    toTake.countDown();
                    return view.getDeliveryAttempt() <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                })
                .build();
            if (silence > 0) {
                Producer producer = provider.newProducerBuilder()
                    .setClientConfiguration(configuration)
                    .setTopics(args[4])
                    .build();
                TimeUnit.SECONDS.sleep(silence);
                for (int i = 0; i < Integer.parseInt(args[5]); i++) {
                    byte[] body = "after a silence".getBytes(StandardCharsets.UTF_8);
                    producer.send(provider.newMessageBuilder().setTopic(args[4]).setBody(body).build());
                }
            }
            toTake.await(seconds, TimeUnit.SECONDS);
        } else {
            SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(args[3])
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(all)
                .build();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            while (toTake.getCount() > 0 && System.nanoTime() < end) {
                try {
                    List<MessageView> views = consumer.receive(8, Duration.ofSeconds(60));
                    for (MessageView view : views) {
                        times.add(System.currentTimeMillis());
                        toTake.countDown();
                        consumer.ack(view);
                    }
                } catch (Exception error) {
                    errors.add(error.toString());
                }
            }
        }
        Map<String, String> report = new LinkedHashMap<>();
        report.put("times_ms", times.stream().map(String::valueOf).collect(Collectors.joining(",", "[", "]")));
        report.put("errors", Json.texts(errors));
        System.out.println(Json.object(report));
        System.exit(0);
    }
}
