// Prints a real broker's reading of bytes: for each input one JSON line on standard output.
//
// Input: (i32 length, length bytes)*, each one frame as sent by a client, with its own length word. Every input goes
// through the broker's own NettyDecoder in a separate channel, and the result through the methods that its processors
// use to find a send's topic, a send-back's group, and the group and topic of a pull or a pop.
//
// Run with: java -cp "lib/*" Oracle.java

import io.netty.buffer.ByteBuf;
import io.netty.buffer.PooledByteBufAllocator;
import io.netty.channel.embedded.EmbeddedChannel;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.processor.AbstractSendMessageProcessor;
import org.apache.rocketmq.broker.processor.ReplyMessageProcessor;
import org.apache.rocketmq.broker.processor.SendMessageProcessor;
import org.apache.rocketmq.remoting.netty.NettyDecoder;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingCommandType;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.ConsumerSendMsgBackRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PullMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;

public class Oracle {
    private static AbstractSendMessageProcessor sendProcessor;
    private static AbstractSendMessageProcessor replyProcessor;
    private static Method parseSend;
    private static Method parseReply;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, StandardCharsets.UTF_8);
        System.setOut(System.err); // before any library is loaded, so that their output does not mix with the answers
        sendProcessor = new SendMessageProcessor(null);
        replyProcessor = new ReplyMessageProcessor(null);
        parseSend = AbstractSendMessageProcessor.class.getDeclaredMethod("parseRequestHeader", RemotingCommand.class);
        parseSend.setAccessible(true);
        parseReply = ReplyMessageProcessor.class.getDeclaredMethod("parseRequestHeader", RemotingCommand.class);
        parseReply.setAccessible(true);
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        while (true) {
            int length;
            try {
                length = in.readInt();
            } catch (EOFException end) {
                break;
            }
            if (length < 0) { // requests the answers so far
                out.flush();
                continue;
            }
            byte[] frame = new byte[length];
            in.readFully(frame);
            out.println(read(frame));
        }
        out.flush();
    }

    private static String read(byte[] frame) {
        EmbeddedChannel channel = new EmbeddedChannel(new NettyDecoder());
        try {
            ByteBuf buffer = PooledByteBufAllocator.DEFAULT.directBuffer(Math.max(1, frame.length));
            buffer.writeBytes(frame);
            String error = null;
            try {
                channel.writeInbound(buffer);
            } catch (Throwable thrown) {
                error = thrown.toString();
            }
            Object first = channel.readInbound();
            StringBuilder line = new StringBuilder("{\"open\":").append(channel.isOpen());
            if (error != null) {
                field(line, "error", error);
            }
            if (first instanceof RemotingCommand) {
                describe(line, (RemotingCommand) first);
            }
            return line.append('}').toString();
        } finally {
            channel.finishAndReleaseAll();
        }
    }

    private static void describe(StringBuilder line, RemotingCommand command) {
        line.append(",\"code\":").append(command.getCode());
        line.append(",\"flag\":").append(command.getFlag());
        line.append(",\"opaque\":").append(command.getOpaque());
        line.append(",\"version\":").append(command.getVersion());
        field(line, "language", command.getLanguage() == null ? null : command.getLanguage().name());
        field(line, "remark", command.getRemark());
        line.append(",\"body\":").append(command.getBody() == null ? 0 : command.getBody().length);
        line.append(",\"response\":").append(command.getType() == RemotingCommandType.RESPONSE_COMMAND);
        line.append(",\"oneway\":").append(command.isOnewayRPC());
        extFields(line, command.getExtFields());
        try {
            resource(line, command);
        } catch (Throwable thrown) {
            field(line, "refused", String.valueOf(thrown.getCause() == null ? thrown : thrown.getCause()));
        }
    }

    private static void resource(StringBuilder line, RemotingCommand command) throws Exception {
        SendMessageRequestHeader send;
        switch (command.getCode()) {
            case RequestCode.SEND_MESSAGE:
            case RequestCode.SEND_MESSAGE_V2:
            case RequestCode.SEND_BATCH_MESSAGE:
                send = (SendMessageRequestHeader) parseSend.invoke(sendProcessor, command);
                break;
            case RequestCode.SEND_REPLY_MESSAGE:
            case RequestCode.SEND_REPLY_MESSAGE_V2:
                send = (SendMessageRequestHeader) parseReply.invoke(replyProcessor, command);
                break;
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                field(line, "group", ((ConsumerSendMsgBackRequestHeader) command.decodeCommandCustomHeader(
                    ConsumerSendMsgBackRequestHeader.class)).getGroup());
                return;
            case RequestCode.PULL_MESSAGE:
            case RequestCode.LITE_PULL_MESSAGE:
                PullMessageRequestHeader pull =
                    (PullMessageRequestHeader) command.decodeCommandCustomHeader(PullMessageRequestHeader.class);
                field(line, "consumer_group", pull.getConsumerGroup());
                field(line, "topic", pull.getTopic());
                return;
            case RequestCode.POP_MESSAGE:
                PopMessageRequestHeader pop =
                    (PopMessageRequestHeader) command.decodeCommandCustomHeader(PopMessageRequestHeader.class, true);
                field(line, "consumer_group", pop.getConsumerGroup());
                field(line, "topic", pop.getTopic());
                return;
            default:
                return;
        }
        field(line, "topic", send.getTopic());
        field(line, "producer_group", send.getProducerGroup());
        line.append(",\"batch\":").append(send.isBatch());
    }

    private static void extFields(StringBuilder line, HashMap<String, String> fields) {
        if (fields == null) {
            line.append(",\"ext\":null");
            return;
        }
        line.append(",\"ext\":{");
        String separator = "";
        for (Map.Entry<?, ?> entry : ((HashMap<?, ?>) fields).entrySet()) {
            line.append(separator);
            quote(line, String.valueOf(entry.getKey()));
            line.append(':');
            Object value = entry.getValue();
            if (value == null) {
                line.append("null");
            } else {
                // The type says String, the JSON library may have put something else there.
                quote(line, value instanceof String ? (String) value : value.getClass().getName() + " " + value);
            }
            separator = ",";
        }
        line.append('}');
    }

    private static void field(StringBuilder line, String name, String value) {
        line.append(",\"").append(name).append("\":");
        if (value == null) {
            line.append("null");
        } else {
            quote(line, value);
        }
    }

    private static void quote(StringBuilder line, String text) {
        line.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                line.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                line.append(String.format("\\u%04x", (int) c));
            } else {
                line.append(c);
            }
        }
        line.append('"');
    }
}
