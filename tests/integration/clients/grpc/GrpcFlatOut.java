import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;

/**
 * Sends to several topics at once over one producer, and so over one connection, as fast as the answers come.
 *
 * <p>Arguments: endpoints, plain or tls, attempts of each call (0: the client's default), seconds, topic…
 * Prints one line of JSON: for each topic the stored, refused (with the first exception) and failed messages.
 */
public final class GrpcFlatOut {
    private static final byte[] BODY = "x".repeat(128).getBytes(StandardCharsets.US_ASCII);

    private GrpcFlatOut() {}

    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0])
            .enableSsl(args[1].equals("tls"))
            // A send that timed out on a busy machine may have been stored.
            .setRequestTimeout(Duration.ofSeconds(30))
            .build();
        int attempts = Integer.parseInt(args[2]);
        long runNanos = Long.parseLong(args[3]) * 1_000_000_000L;
        List<Sender> senders = new ArrayList<>();
        String[] topics = new String[args.length - 4];
        System.arraycopy(args, 4, topics, 0, topics.length);
        ProducerBuilder builder = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics);
        Producer producer = (attempts == 0 ? builder : builder.setMaxAttempts(attempts)).build();
        for (String topic : topics) {
            senders.add(new Sender(producer, provider.newMessageBuilder().setTopic(topic).setBody(BODY).build()));
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
        producer.close();
        Map<String, String> report = new LinkedHashMap<>();
        for (int i = 0; i < topics.length; i++) {
            report.put(topics[i], senders.get(i).report());
        }
        System.out.println(Json.object(report));
        System.exit(0);
    }

    /** The outcomes of one topic's sends. */
    private static final class Sender {
        private final Producer producer;
        private final Message message;
        private int stored;
        private int refused;
        private int failed;
        private String refusal = "";
        private String failure = "";

        Sender(Producer producer, Message message) {
            this.producer = producer;
            this.message = message;
        }

        void send() {
            try {
                producer.send(message);
                stored++;
            } catch (ClientException error) {
                if (error.getClass().getSimpleName().equals("TooManyRequestsException")) {
                    refused++;
                    refusal = refusal.isEmpty() ? error.toString() : refusal;
                } else {
                    failed++;
                    failure = failure.isEmpty() ? error.toString() : failure;
                }
            }
        }

        String report() {
            Map<String, String> counts = new LinkedHashMap<>();
            counts.put("stored", String.valueOf(stored));
            counts.put("refused", String.valueOf(refused));
            counts.put("failed", String.valueOf(failed));
            counts.put("refusal", Json.text(refusal));
            counts.put("failure", Json.text(failure));
            return Json.object(counts);
        }
    }
}
