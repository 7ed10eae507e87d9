import java.util.Collection;
import java.util.Map;
import java.util.stream.Collectors;

/** Writes the reports of the clients: the JSON libraries of RocketMQ 5's client are inside it, under other names. */
final class Json {
    private Json() {}

    static String object(Map<String, String> values) {
        return values.entrySet().stream()
            .map(each -> text(each.getKey()) + ":" + each.getValue())
            .collect(Collectors.joining(",", "{", "}"));
    }

    static String texts(Collection<String> values) {
        return values.stream().map(Json::text).collect(Collectors.joining(",", "[", "]"));
    }

    static String text(String value) {
        StringBuilder out = new StringBuilder("\"");
        for (char each : value.toCharArray()) {
            if (each == '"' || each == '\\') {
                out.append('\\').append(each);
            } else if (each < ' ') {
                out.append(' ');
            } else {
                out.append(each);
            }
        }
        return out.append('"').toString();
    }
}
