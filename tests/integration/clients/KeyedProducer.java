import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends messages with the keys 0, 1, 2… and stops at the first that is not stored.
 *
 * <p>Arguments: name server, producer group, topic, messages. Prints one line of JSON.
 */
public final class KeyedProducer {
    private KeyedProducer() {}

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        int count = Integer.parseInt(args[3]);
        for (int key = 0; key < count; key++) {
            byte[] body = ("message " + key).getBytes(StandardCharsets.US_ASCII);
            producer.send(new Message(args[2], "", Integer.toString(key), body));
        }
        producer.shutdown();
        System.out.println(JSON.toJSONString(Map.of("stored", count)));
        System.exit(0);
    }
}
