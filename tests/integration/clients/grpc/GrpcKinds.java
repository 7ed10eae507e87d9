import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Sends and consumes messages of each kind, and prints the results: the same each time, through Sluice or not.
 *
 * <p>Arguments: endpoints, plain or tls, prefix of topics and groups. Topics are PREFIX-normal, -fifo, -delay and
 * -transaction, of these types. Groups are PREFIX-… as below, of which -fifo and -dead consume in order, and -dead
 * with one retry.
 */
public final class GrpcKinds {
    private static final int MESSAGES = 20;
    private static final long PATIENCE_S = 120;
    private static final FilterExpression ALL = new FilterExpression("*");

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final String prefix;
    private final Map<String, String> report = new LinkedHashMap<>();

    private GrpcKinds(String endpoints, boolean tls, String prefix) {
        configuration = ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(tls).build();
        this.prefix = prefix;
    }

    public static void main(String[] args) throws Exception {
        new GrpcKinds(args[0], args[1].equals("tls"), args[2]).run();
        System.exit(0);
    }

    private void run() throws Exception {
        Producer producer = provider.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topic("normal"), topic("fifo"), topic("delay"), topic("transaction"))
            // The broker may ask about the others, too, as it processes their ends late.
            .setTransactionChecker(view -> body(view).equals("rolled back") ? TransactionResolution.ROLLBACK
                : TransactionResolution.COMMIT)
            .build();
        normal(producer);
        fifo(producer);
        delayed(producer);
        transactions(producer);
        deadLetter(producer);
        simple(producer);
        producer.close();
        System.out.println(Json.object(report));
    }

    private void normal(Producer producer) throws Exception {
        Consumed consumed = new Consumed(MESSAGES + 1, view -> failsFirst(view, "normal-0"));
        try (PushConsumer ignored = push("push", "normal", consumed)) {
            for (int i = 0; i < MESSAGES; i++) {
                producer.send(message("normal", "normal-" + i).build());
            }
            consumed.await();
        }
        report.put("normal", Json.texts(new TreeSet<>(consumed.bodies)));
        report.put("normal again", Json.texts(consumed.repeated));
    }

    private void fifo(Producer producer) throws Exception {
        Consumed consumed = new Consumed(MESSAGES, view -> ConsumeResult.SUCCESS);
        try (PushConsumer ignored = push("fifo", "fifo", consumed)) {
            for (int i = 0; i < MESSAGES; i++) {
                producer.send(message("fifo", "fifo-" + i).setMessageGroup("account").build());
            }
            consumed.await();
        }
        report.put("fifo", Json.texts(consumed.bodies));
    }

    private void delayed(Producer producer) throws Exception {
        Consumed consumed = new Consumed(1, view -> ConsumeResult.SUCCESS);
        try (PushConsumer ignored = push("delay", "delay", consumed)) {
            SendReceipt recalled = producer.send(message("delay", "recalled").setDeliveryTimestamp(in(4)).build());
            producer.recallMessage(topic("delay"), recalled.getRecallHandle());
            producer.send(message("delay", "delayed").setDeliveryTimestamp(in(2)).build());
            consumed.await();
            // A recalled message would have come by now.
            Thread.sleep(4_000);
        }
        report.put("delay", Json.texts(consumed.bodies));
    }

    private void transactions(Producer producer) throws Exception {
        Consumed consumed = new Consumed(2, view -> ConsumeResult.SUCCESS);
        try (PushConsumer ignored = push("transaction", "transaction", consumed)) {
            for (String what : List.of("committed", "rolled back", "asked about")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message("transaction", what).build(), transaction);
                if (what.equals("committed")) {
                    transaction.commit();
                } else if (what.equals("rolled back")) {
                    transaction.rollback();
                }
            }
            consumed.await();
        }
        report.put("transaction", Json.texts(new TreeSet<>(consumed.bodies)));
    }

    /** A message that fails in order becomes a dead letter by the client's own request. */
    private void deadLetter(Producer producer) throws Exception {
        Consumed consumed = new Consumed(2, view -> body(view).equals("dead") ? ConsumeResult.FAILURE
            : ConsumeResult.SUCCESS);
        try (PushConsumer ignored = push("dead", "fifo", consumed)) {
            producer.send(message("fifo", "dead").setMessageGroup("dead").build());
            producer.send(message("fifo", "behind").setMessageGroup("dead").build());
            consumed.awaitBody("behind");
        }
        // From the topic's start.
        consumed.bodies.removeIf(body -> body.startsWith("fifo-"));
        report.put("dead", Json.texts(consumed.bodies));
    }

    private void simple(Producer producer) throws Exception {
        List<String> seen = new ArrayList<>();
        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(prefix + "-simple")
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Collections.singletonMap(topic("normal"), ALL))
                .build()) {
            producer.send(message("normal", "simple").build());
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (!seen.contains("simple 2") && System.nanoTime() < end) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(10))) {
                    if (!body(view).equals("simple")) {
                        consumer.ack(view);
                        continue;
                    }
                    seen.add("simple " + view.getDeliveryAttempt());
                    if (view.getDeliveryAttempt() == 1) {
                        // It comes again soon.
                        consumer.changeInvisibleDuration(view, Duration.ofSeconds(1));
                    } else {
                        consumer.ack(view);
                    }
                }
            }
        }
        report.put("simple", Json.texts(seen));
    }

    private PushConsumer push(String group, String topic, Consumed consumed) throws Exception {
        return provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(prefix + "-" + group)
            .setSubscriptionExpressions(Collections.singletonMap(topic(topic), ALL))
            .setMessageListener(consumed::take)
            .build();
    }

    private String topic(String type) {
        return prefix + "-" + type;
    }

    private MessageBuilder message(String type, String body) {
        return provider.newMessageBuilder().setTopic(topic(type)).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static ConsumeResult failsFirst(MessageView view, String body) {
        boolean fails = body(view).equals(body) && view.getDeliveryAttempt() == 1;
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    private static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    private static long in(long seconds) {
        return System.currentTimeMillis() + TimeUnit.SECONDS.toMillis(seconds);
    }

    /** A push consumer's deliveries. */
    private static final class Consumed {
        final List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        final List<String> repeated = Collections.synchronizedList(new ArrayList<>());
        private final Function<MessageView, ConsumeResult> result;
        private final CountDownLatch missing;

        Consumed(int expected, Function<MessageView, ConsumeResult> result) {
            this.result = result;
            missing = new CountDownLatch(expected);
        }

        ConsumeResult take(MessageView view) {
            bodies.add(body(view));
            if (view.getDeliveryAttempt() > 1) {
                repeated.add(body(view));
            }
            missing.countDown();
            return result.apply(view);
        }

        void await() throws InterruptedException {
            if (!missing.await(PATIENCE_S, TimeUnit.SECONDS)) {
                bodies.add("and no more");
            }
        }

        void awaitBody(String wanted) throws InterruptedException {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (!bodies.contains(wanted) && System.nanoTime() < end) {
                Thread.sleep(100);
            }
        }
    }
}
