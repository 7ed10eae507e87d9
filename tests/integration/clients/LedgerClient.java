import java.nio.charset.StandardCharsets;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends and consumes for ever, and prints the outcome of each message. See harness/ledger.py.
 *
 * <p>Arguments: name server, topic, a name for its groups. Sends are asynchronous, many at a time, without
 * retries: otherwise the first attempt could store a message and the second be refused.
 */
public final class LedgerClient {
    private static final int EVERY_MILLIS = 10;
    private static final int AT_ONCE = 64;
    private static final int TIMEOUT_MILLIS = 3000;
    private static final int SYSTEM_BUSY = 2;
    private static final int PADDING = 200;

    private LedgerClient() {}

    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        String name = args[2];
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name + "-consumer");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name + "-consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("got", Integer.parseInt(new String(message.getBody(), StandardCharsets.US_ASCII).trim()));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer(name + "-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(name + "-producer");
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        System.out.println("started");
        Semaphore room = new Semaphore(AT_ONCE);
        for (int id = 1; ; id++) {
            room.acquire();
            send(producer, topic, id, room);
            Thread.sleep(EVERY_MILLIS);
        }
    }

    private static void send(DefaultMQProducer producer, String topic, int id, Semaphore room) {
        byte[] body = String.format("%-" + PADDING + "d", id).getBytes(StandardCharsets.US_ASCII);
        SendCallback told = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                say(result.getSendStatus() == SendStatus.SEND_OK ? "stored" : "unknown", id);
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                boolean busy = error instanceof MQBrokerException broker && broker.getResponseCode() == SYSTEM_BUSY;
                say(busy ? "refused" : "unknown", id);
                room.release();
            }
        };
        try {
            producer.send(new Message(topic, body), told, TIMEOUT_MILLIS);
        } catch (Exception error) {
            told.onException(error);
        }
    }

    private static synchronized void say(String what, int id) {
        System.out.println(what + " " + id + " " + System.currentTimeMillis());
    }
}
