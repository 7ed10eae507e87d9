import java.util.Map;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressFullMessagePolicy;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;
import org.apache.activemq.artemis.api.core.RoutingType;

/**
 * A broker in memory that creates a queue when it is first used.
 *
 * <p>Arguments: the port on loopback, and further settings of its acceptor, such as {@code maxFrameSize=512}.
 */
public final class EmbeddedArtemis {
    private EmbeddedArtemis() {}

    public static void main(String[] args) throws Exception {
        ConfigurationImpl configuration = new ConfigurationImpl();
        configuration.setPersistenceEnabled(false).setSecurityEnabled(false).setJMXManagementEnabled(false);
        String further = args.length > 1 ? ";" + args[1] : "";
        configuration.addAcceptorConfiguration("amqp", "tcp://127.0.0.1:" + args[0] + "?protocols=AMQP" + further);
        AddressSettings settings = new AddressSettings().setDefaultAddressRoutingType(RoutingType.ANYCAST)
                .setDefaultQueueRoutingType(RoutingType.ANYCAST).setAutoDeleteQueues(false).setAutoDeleteAddresses(false)
                .setAddressFullMessagePolicy(AddressFullMessagePolicy.BLOCK);
        configuration.setAddressSettings(Map.of("#", settings));
        EmbeddedActiveMQ server = new EmbeddedActiveMQ();
        server.setConfiguration(configuration);
        server.start();
        System.out.println("ready");
        Thread.currentThread().join();
    }
}
