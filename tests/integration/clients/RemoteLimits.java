import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.exception.RemotingTimeoutException;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeaderV2;

/**
 * Reads and changes limits by the requests 9002 and 9003, over one connection, like an administrator's tool.
 *
 * <p>Arguments: address, then actions in order: {@code view}, {@code update=TOPIC=QPS}, {@code oneway=TOPIC=QPS},
 * {@code until=TOPIC=QPS} (views until one has that limit), {@code send=TOPIC}. Prints one line of JSON: for each
 * its answer's code, remark and, of a view, its body.
 */
public final class RemoteLimits {
    private static final int SEND_MESSAGE_V2 = 310;
    private static final int VIEW = 9002;
    private static final int UPDATE = 9003;
    private static final long TIMEOUT_MS = 30_000;

    private RemoteLimits() {}

    /** The fields of an update, as written by such tools. */
    public static final class UpdateHeader implements CommandCustomHeader {
        private double defaultLimitQps = -1;
        private double sendMsgBackLimitQps = -1;
        private String topic;
        private double topicLimitQps = -1;

        @Override
        public void checkFields() {}
    }

    /** One limit of a view. */
    public static final class Limit {
        public String topic;
        public double limitQps;
        public long lastNeedWaitMicrosecs;
        public long lastRateLimitTimestamp;
    }

    /** The body of a view. */
    public static final class Limits extends RemotingSerializable {
        public DataVersion dataVersion;
        public List<Limit> topicRateLimitList;
    }

    public static void main(String[] args) throws Exception {
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        client.start();
        List<Map<String, Object>> answers = new ArrayList<>();
        for (int index = 1; index < args.length; index++) {
            String[] words = args[index].split("=");
            RemotingCommand request = request(words);
            if (words[0].equals("oneway")) {
                client.invokeOneway(args[0], request, TIMEOUT_MS);
                continue;
            }
            RemotingCommand answer = client.invokeSync(args[0], request, TIMEOUT_MS);
            while (words[0].equals("until") && !has(answer, words[1], Double.parseDouble(words[2]))) {
                Thread.sleep(10);
                answer = client.invokeSync(args[0], request, TIMEOUT_MS);
            }
            answers.add(told(answer, request.getCode() == VIEW));
        }
        client.shutdown();
        System.out.println(JSON.toJSONString(answers));
        System.exit(0);
    }

    private static RemotingCommand request(String[] words) throws RemotingTimeoutException {
        switch (words[0]) {
            case "view":
            case "until":
                return RemotingCommand.createRequestCommand(VIEW, null);
            case "send":
                return send(words[1]);
            default:
                UpdateHeader header = new UpdateHeader();
                header.topic = words[1];
                header.topicLimitQps = Double.parseDouble(words[2]);
                return RemotingCommand.createRequestCommand(UPDATE, header);
        }
    }

    private static boolean has(RemotingCommand answer, String topic, double qps) {
        Limits limits = RemotingSerializable.decode(answer.getBody(), Limits.class);
        return limits.topicRateLimitList.stream().anyMatch(each -> each.topic.equals(topic) && each.limitQps == qps);
    }

    private static RemotingCommand send(String topic) {
        Message message = new Message(topic, "hello".getBytes(StandardCharsets.US_ASCII));
        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup("remote-limits");
        header.setTopic(topic);
        header.setDefaultTopic("TBW102");
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(0);
        header.setSysFlag(0);
        header.setBornTimestamp(System.currentTimeMillis());
        header.setFlag(0);
        header.setProperties("");
        header.setReconsumeTimes(0);
        header.setUnitMode(false);
        header.setBatch(false);
        RemotingCommand request =
                RemotingCommand.createRequestCommand(
                        SEND_MESSAGE_V2, SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(header));
        request.setBody(message.getBody());
        return request;
    }

    private static Map<String, Object> told(RemotingCommand answer, boolean view) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("code", answer.getCode());
        told.put("remark", answer.getRemark());
        if (view && answer.getBody() != null) {
            Limits limits = RemotingSerializable.decode(answer.getBody(), Limits.class);
            told.put("counter", limits.dataVersion.getCounter().get());
            told.put("limits", limits.topicRateLimitList);
        }
        return told;
    }
}
