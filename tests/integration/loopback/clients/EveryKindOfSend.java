import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends in every way that the embedded broker knows: waiting for the answer, with a callback, oneway, a batch, and a
 * body so large that the client compresses it.
 *
 * <p>Arguments: name server, topic. Prints one line of JSON: what the answers said was stored, by way.
 */
public final class EveryKindOfSend {
    /** A cold virtual machine on a busy computer needs longer than the default for its first send. */
    private static final int SEND_TIMEOUT_MILLIS = 30_000;

    private EveryKindOfSend() {}

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
        Map<String, Integer> stored = new LinkedHashMap<>();
        DefaultMQProducer producer = new DefaultMQProducer("producer-of-" + args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MILLIS);
        producer.start();
        stored.put("waiting", ok(producer.send(message(args[1], "waiting", "a"))));

        CountDownLatch called = new CountDownLatch(1);
        producer.send(message(args[1], "callback", "b"), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                stored.put("callback", ok(result));
                called.countDown();
            }

            @Override
            public void onException(Throwable error) {
                called.countDown();
            }
        });
        called.await(10, TimeUnit.SECONDS);

        producer.sendOneway(message(args[1], "oneway", "a"));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(message(args[1], "batch " + i, "a"));
        }
        SendResult inBatch = producer.send(batch);
        stored.put("batch", ok(inBatch) * inBatch.getMsgId().split(",").length);
        stored.put("compressed", ok(producer.send(message(args[1], "compressed".repeat(1000), "c"))));
        producer.shutdown();
        System.out.println(JSON.toJSONString(stored));
    }

    private static Message message(String topic, String body, String tag) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.US_ASCII));
    }

    private static int ok(SendResult result) {
        return result.getSendStatus() == SendStatus.SEND_OK ? 1 : 0;
    }
}
