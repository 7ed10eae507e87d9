import com.google.gson.Gson;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Prints the Java client's reports to its user, until the connection is gone.
 *
 * <p>Arguments: host, port, a queue, a queue that refuses. It publishes to the second one, then to a missing queue, as
 * mandatory, prints {@code started}, and then publishes to the first one every 50 ms. Prints a line of JSON for each
 * report: its subject, the listener or the exception's class, its text.
 */
public final class Watched {
    private Watched() {}

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(args[0]);
        factory.setPort(Integer.parseInt(args[1]));
        factory.setAutomaticRecoveryEnabled(false);
        Connection connection = factory.newConnection();
        connection.addBlockedListener(
                reason -> say("blocked", "listener", reason), () -> say("unblocked", "listener", ""));
        connection.addShutdownListener(cause -> say("shutdown", "listener", cause.getMessage()));
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        channel.addReturnListener(returned -> say("unroutable", "listener", returned.getReplyText()));
        publish(channel, "refused", args[3], false);
        publish(channel, "unroutable", "nowhere", true);
        System.out.println("started");
        try {
            while (true) {
                channel.basicPublish("", args[2], MessageProperties.MINIMAL_BASIC, new byte[1]);
                if (!channel.waitForConfirms()) {
                    say("publish", "nack", "");
                }
                Thread.sleep(50);
            }
        } catch (ShutdownSignalException | IOException error) {
            Thread.sleep(100); // the listener comes first or never
            say("lost", error.getClass().getSimpleName(), error.getMessage());
        }
        // Its threads may run for a while.
        System.exit(0);
    }

    private static void publish(Channel channel, String about, String key, boolean mandatory) throws Exception {
        channel.basicPublish("", key, mandatory, MessageProperties.MINIMAL_BASIC, new byte[1]);
        say(about, channel.waitForConfirms() ? "ack" : "waitForConfirms", "");
    }

    private static synchronized void say(String about, String what, String text) {
        Map<String, String> line = new LinkedHashMap<>();
        line.put("about", about);
        line.put("what", what);
        line.put("text", text);
        System.out.println(new Gson().toJson(line));
    }
}
