import com.google.gson.Gson;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;

/**
 * Consumes so many messages of a queue and acknowledges each.
 *
 * <p>Arguments: host, port, queue, count. Prints {@code started} when it consumes, and at its end one line of JSON: of
 * each message, in their order, what the client says of its properties, and its body in hex.
 */
public final class Received {
    private Received() {}

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(args[0]);
        factory.setPort(Integer.parseInt(args[1]));
        factory.setAutomaticRecoveryEnabled(false);
        int count = Integer.parseInt(args[3]);
        List<List<String>> seen = new ArrayList<>();
        CountDownLatch missing = new CountDownLatch(count);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.basicConsume(args[2], false, (tag, delivery) -> {
                BasicProperties properties = delivery.getProperties();
                String headers = String.valueOf(shown(properties.getHeaders()));
                String others = properties.builder().headers(null).build().toString();
                seen.add(List.of(others + " " + headers, HexFormat.of().formatHex(delivery.getBody())));
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
                missing.countDown();
            }, tag -> {});
            System.out.println("started");
            missing.await();
        }
        System.out.println(new Gson().toJson(seen));
    }

    /** A value with its type, and maps in the order of their keys. */
    private static Object shown(Object value) {
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> fields = new TreeMap<>();
            map.forEach((name, each) -> fields.put((String) name, shown(each)));
            return fields;
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Received::shown).toList();
        }
        if (value instanceof byte[] bytes) {
            return "bytes " + HexFormat.of().formatHex(bytes);
        }
        return value == null ? "null" : value.getClass().getSimpleName() + " " + value;
    }
}
