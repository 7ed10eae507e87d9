import com.google.gson.Gson;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import java.util.Map;
import java.util.TreeMap;

/**
 * Publishes and consumes for ever with the Java client, which recovers by itself.
 *
 * <p>Arguments: host, port, queue. Says {@code started}; then prints a line of JSON every half second: how many messages
 * were confirmed and how many came back so far, how often it connected, and which errors it saw.
 */
public final class Recovering {
    private Recovering() {}

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(args[0]);
        factory.setPort(Integer.parseInt(args[1]));
        factory.setNetworkRecoveryInterval(500);
        State state = new State();
        Connection connection = factory.newConnection();
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recovered) {
                state.connected++;
            }

            @Override
            public void handleRecoveryStarted(Recoverable recovered) {}
        });
        state.connected++;
        Channel channel = connection.createChannel();
        channel.queueDeclare(args[2], true, false, false, null);
        channel.confirmSelect();
        Channel consuming = connection.createChannel();
        consuming.basicConsume(args[2], false, (tag, delivery) -> {
            consuming.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            state.consumed++;
        }, tag -> {});
        System.out.println("started");
        Thread reporting = new Thread(() -> {
            while (true) {
                System.out.println(new Gson().toJson(state));
                pause(500);
            }
        });
        reporting.setDaemon(true);
        reporting.start();
        while (true) {
            try {
                channel.basicPublish("", args[2], MessageProperties.MINIMAL_PERSISTENT_BASIC, new byte[1]);
                channel.waitForConfirmsOrDie(2000);
                state.confirmed++;
                pause(50);
            } catch (Exception error) {
                state.errors.merge(error.getClass().getSimpleName(), 1, Integer::sum);
                pause(500);
            }
        }
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    /** Its fields are the report. */
    private static final class State {
        volatile int confirmed;
        volatile int consumed;
        volatile int connected;
        final Map<String, Integer> errors = new TreeMap<>();
    }
}
