import com.google.gson.GsonBuilder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;

/**
 * Publishes and consumes with Spring AMQP, in each way that reports a refusal.
 *
 * <p>Arguments: host, port, a queue, a queue that refuses. Prints one line of JSON: the confirms of both with their
 * texts, and the deliveries of a listener that fails once per message.
 */
public final class SpringClient {
    private static final int COUNT = 30;
    private static final long PATIENCE_S = 60;

    private SpringClient() {}

    public static void main(String[] args) throws Exception {
        Map<String, Object> report = new LinkedHashMap<>();
        for (ConfirmType type : List.of(ConfirmType.CORRELATED, ConfirmType.SIMPLE, ConfirmType.NONE)) {
            CachingConnectionFactory factory = new CachingConnectionFactory(args[0], Integer.parseInt(args[1]));
            factory.setPublisherConfirmType(type);
            RabbitTemplate template = new RabbitTemplate(factory);
            template.setReplyTimeout(PATIENCE_S * 1000);
            switch (type) {
                case CORRELATED -> {
                    new RabbitAdmin(factory).declareQueue(new Queue(args[2]));
                    report.put("correlated", List.of(correlated(template, args[2]), correlated(template, args[3])));
                }
                case SIMPLE ->
                    report.put("simple", List.of(simple(template, args[2]), simple(template, args[3])));
                case NONE -> {
                    report.put("listened", listened(factory, args[2]));
                    report.put("called", called(factory, template, args[2]));
                }
            }
            factory.destroy();
        }
        System.out.println(new GsonBuilder().serializeNulls().create().toJson(report));
        System.exit(0);
    }

    /** Publish. Return of each confirm whether it is an ack, and its reason. */
    private static Map<String, Integer> correlated(RabbitTemplate template, String queue) throws Exception {
        List<CorrelationData> sent = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            sent.add(new CorrelationData(String.valueOf(number)));
            template.convertAndSend("", queue, String.valueOf(number), sent.get(number));
        }
        Map<String, Integer> told = new LinkedHashMap<>();
        for (CorrelationData each : sent) {
            CorrelationData.Confirm confirm = each.getFuture().get(PATIENCE_S, TimeUnit.SECONDS);
            told.merge(confirm.ack() + " " + confirm.reason(), 1, Integer::sum);
        }
        return told;
    }

    /** Publish and wait on the same channel. Return the results of waitForConfirms and waitForConfirmsOrDie. */
    private static List<String> simple(RabbitTemplate template, String queue) {
        boolean confirmed = Boolean.TRUE.equals(template.invoke(operations -> {
            operations.convertAndSend("", queue, "simple");
            return operations.waitForConfirms(PATIENCE_S * 1000);
        }));
        String thrown = "";
        try {
            template.invoke(operations -> {
                operations.convertAndSend("", queue, "or die");
                operations.waitForConfirmsOrDie(PATIENCE_S * 1000);
                return null;
            });
        } catch (AmqpException error) {
            thrown = error.getClass().getSimpleName() + ": " + error.getMessage();
        }
        return List.of(String.valueOf(confirmed), thrown);
    }

    /** Consume all, each message at the second attempt. Return their number. */
    private static int listened(CachingConnectionFactory factory, String queue) throws InterruptedException {
        Set<String> failed = ConcurrentHashMap.newKeySet();
        CountDownLatch left = new CountDownLatch(COUNT + 2);
        SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(factory);
        container.setQueueNames(queue);
        container.setConcurrentConsumers(2);
        container.setPrefetchCount(5);
        container.setErrorHandler(error -> {});
        container.setMessageListener((Message message) -> {
            if (failed.add(new String(message.getBody(), StandardCharsets.UTF_8))) {
                throw new IllegalStateException("at first");
            }
            left.countDown();
        });
        container.start();
        boolean all = left.await(PATIENCE_S, TimeUnit.SECONDS);
        container.stop();
        return all ? failed.size() : -1;
    }

    /** Let a listener answer calls, by RabbitMQ's direct replies. */
    private static List<Object> called(CachingConnectionFactory factory, RabbitTemplate template, String queue) {
        SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(factory);
        container.setQueueNames(queue);
        container.setMessageListener(new MessageListenerAdapter(new Upper(), "answer"));
        container.start();
        List<Object> answers = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            answers.add(template.convertSendAndReceive("", queue, "call " + number));
        }
        container.stop();
        return answers;
    }

    public static final class Upper {
        /** Return the text in upper case. */
        public String answer(String text) {
            return text.toUpperCase(java.util.Locale.ROOT);
        }
    }
}
