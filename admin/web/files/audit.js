/** The audit trail: who changed what, when and why, and the way back. */

import { get } from "./api.js";
import { failed, useAnswer } from "./app.js";
import { ChangeTable } from "./changes.js";
import { html, useState } from "./html.js";
import { Search } from "./parts.js";

const PAGE = 50;

export function AuditView({ params }) {
  const [earlier, setEarlier] = useState([]);
  const query = { target: params.get("target"), by: params.get("by"), limit: PAGE };
  const [newest] = useAnswer(async () => {
    const page = await get("audit", query);
    setEarlier([]);
    return page;
  }, [query.target, query.by]);
  const pages = newest ? [newest, ...earlier] : [];
  const changes = pages.flatMap((page) => page.changes);
  const before = pages.at(-1)?.next;
  const more = async () => {
    try {
      setEarlier([...earlier, await get("audit", { ...query, before })]);
    } catch (error) {
      failed(error);
    }
  };
  return html`
    <div class="heading">
      <h1>Audit</h1>
      <p class="muted">Every change, the latest first.</p>
    </div>
    <div class="toolbar" role="search">
      <${Search} param="target" label="What was changed" placeholder="Target, e.g. limits/topic/orders" />
      <${Search} param="by" label="Who changed it" placeholder="By" name="short" />
    </div>
    <${ChangeTable} changes=${changes} empty=${newest && "No change is recorded that matches."} />
    <div class="pager">
      ${before && html`<button type="button" class="button small" onClick=${more}>Earlier changes</button>`}
    </div>
  `;
}
