package grafanatest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
	"github.com/stretchr/testify/require"
)

const file = "../grafana.json"

// A classic dashboard is of the schema that every Grafana imports.
//
//lint:ignore SA1019 the one that is to come after it is not for older ones
type classic = dashboard.Dashboard

// A strictDecoder refuses a field that is not known, one of a wrong type, and one that lacks.
type strictDecoder interface{ UnmarshalJSONStrict(raw []byte) error }

// strict decodes a dashboard as Grafana's schema has it, its panels' options and queries
// too. The decoder of a panel is not strict about its fieldConfig, which has one that is.
func strict(raw []byte) error {
	plugins.RegisterDefaultPlugins()
	var panels struct {
		Panels []struct{ FieldConfig json.RawMessage }
	}
	if err := json.Unmarshal(raw, &panels); err != nil {
		return err
	}
	err := decode(new(classic), raw, "dashboard")
	for i, p := range panels.Panels {
		err = errors.Join(err, decode(new(dashboard.FieldConfigSource), p.FieldConfig, fmt.Sprintf("panels[%d].fieldConfig", i)))
	}
	return err
}

func decode(d strictDecoder, raw []byte, where string) error {
	err := d.UnmarshalJSONStrict(raw)
	var all cog.BuildErrors // an empty list of them is returned where others return nil
	if err == nil || errors.As(err, &all) && len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}

// load returns the dashboard. The strict decoder only refuses: it keeps no options and
// no queries.
func load(t *testing.T) *classic {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, strict(raw))
	d := new(classic)
	require.NoError(t, json.Unmarshal(raw, d))
	return d
}

func TestDashboardIsOfGrafanasSchema(t *testing.T) {
	d := load(t)
	require.NoError(t, d.Validate())
	require.Nil(t, d.Id, "the database that imports it gives one")
	require.Regexp(t, `^[a-zA-Z0-9_-]{8,40}$`, *d.Uid)
	require.NotEmpty(t, *d.Title)
	// Since 36 all data sources are objects, as here; Grafana migrates an older dashboard,
	// and not a newer one.
	require.GreaterOrEqual(t, d.SchemaVersion, uint16(36))
	require.LessOrEqual(t, d.SchemaVersion, dashboard.NewDashboard().SchemaVersion)
	require.Empty(t, d.Annotations.List)

	variables := d.Templating.List
	require.Equal(t, dashboard.VariableTypeDatasource, variables[0].Type, "it comes before those that use it")
	require.Equal(t, "datasource", variables[0].Name)
	require.Equal(t, "prometheus", *variables[0].Query.String, "which plugin's")
	for _, v := range variables[1:] {
		require.Equal(t, dashboard.VariableTypeQuery, v.Type)
		require.Equal(t, *v.Definition, v.Query.Map["query"], v.Name)
		requireDatasource(t, v.Datasource, v.Name)
	}

	ids := map[uint32]bool{}
	cells := map[[2]uint32]string{}
	for _, p := range d.Panels {
		require.Nil(t, p.RowPanel)
		panel := p.Panel
		require.NotEmpty(t, *panel.Title)
		require.False(t, ids[*panel.Id], "panel %d twice", *panel.Id)
		ids[*panel.Id] = true
		requirePlace(t, cells, *panel.GridPos, *panel.Title)
		requirePanel(t, panel)
	}
}

// requirePlace requires that a panel is within the 24 columns and above no other one.
func requirePlace(t *testing.T, cells map[[2]uint32]string, at dashboard.GridPos, title string) {
	t.Helper()
	require.Positive(t, at.W*at.H, title)
	require.LessOrEqual(t, at.X+at.W, uint32(24), title)
	for x := at.X; x < at.X+at.W; x++ {
		for y := at.Y; y < at.Y+at.H; y++ {
			require.Empty(t, cells[[2]uint32{x, y}], "%s lies there too", title)
			cells[[2]uint32{x, y}] = title
		}
	}
}

func requirePanel(t *testing.T, p *dashboard.Panel) {
	t.Helper()
	title := *p.Title
	requireDatasource(t, p.Datasource, title)
	refs := map[string]bool{}
	for _, q := range p.Targets {
		require.IsType(t, &prometheus.Dataquery{}, q, "%s: of what else is it?", title)
		q := q.(*prometheus.Dataquery)
		requireDatasource(t, q.Datasource, title)
		require.NotEmpty(t, *q.RefId, title)
		require.False(t, refs[*q.RefId], "%s: %s twice", title, *q.RefId)
		refs[*q.RefId] = true
		require.NotEmpty(t, *q.LegendFormat, "%s: without one the whole query is the legend", title)
		if strings.Contains(q.Expr, "_seconds") {
			require.Equal(t, units.Seconds, *p.FieldConfig.Defaults.Unit, title)
		}
	}
	require.NotEmpty(t, refs, title)
	require.Contains(t, []string{units.Short, units.Seconds, units.OpsPerSecond, units.PercentUnit}, *p.FieldConfig.Defaults.Unit, title)
	// What is one of several words is any string to the decoder.
	switch o := p.Options.(type) {
	case *stat.Options:
		require.Contains(t, []common.BigValueGraphMode{common.BigValueGraphModeNone, common.BigValueGraphModeLine, common.BigValueGraphModeArea}, o.GraphMode, title)
		require.Contains(t, []common.BigValueColorMode{common.BigValueColorModeNone, common.BigValueColorModeValue, common.BigValueColorModeBackground}, o.ColorMode, title)
		require.Contains(t, []common.BigValueTextMode{common.BigValueTextModeAuto, common.BigValueTextModeValue, common.BigValueTextModeValueAndName}, o.TextMode, title)
		require.Equal(t, stat.NewOptions().JustifyMode, o.JustifyMode, title)
		require.Equal(t, stat.NewOptions().PercentChangeColorMode, o.PercentChangeColorMode, title)
		require.Contains(t, []common.VizOrientation{common.VizOrientationAuto, common.VizOrientationHorizontal, common.VizOrientationVertical}, o.Orientation, title)
		require.Equal(t, []string{"lastNotNull"}, o.ReduceOptions.Calcs, title)
		steps := p.FieldConfig.Defaults.Thresholds // without any, Grafana's own make all above 80 red
		require.NotNil(t, steps, title)
		require.Equal(t, dashboard.ThresholdsModeAbsolute, steps.Mode, title)
		require.Nil(t, steps.Steps[0].Value, "%s: the first is for all below the second", title)
	case *timeseries.Options:
		require.Contains(t, []common.LegendDisplayMode{common.LegendDisplayModeList, common.LegendDisplayModeTable, common.LegendDisplayModeHidden}, o.Legend.DisplayMode, title)
		require.Contains(t, []common.LegendPlacement{common.LegendPlacementBottom, common.LegendPlacementRight}, o.Legend.Placement, title)
		require.Contains(t, []common.TooltipDisplayMode{common.TooltipDisplayModeSingle, common.TooltipDisplayModeMulti, common.TooltipDisplayModeNone}, o.Tooltip.Mode, title)
		require.Contains(t, []common.SortOrder{common.SortOrderAscending, common.SortOrderDescending, common.SortOrderNone}, o.Tooltip.Sort, title)
	default:
		require.Fail(t, "no panel that this test knows", "%s: %T", title, o)
	}
}

func requireDatasource(t *testing.T, d *common.DataSourceRef, where string) {
	t.Helper()
	require.NotNil(t, d, where)
	require.Equal(t, "prometheus", *d.Type, where)
	require.Equal(t, "${datasource}", *d.Uid, where)
}

// The decoder refuses what is wrong anywhere, so that it is worth something that it
// refuses nothing in the file.
func TestSchemaRefuses(t *testing.T) {
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, strict(raw))
	for _, c := range []struct{ here, wrong, says string }{
		{`"title": "quorumlock"`, `"title": "quorumlock", "titel": ""`, "titel"},
		{`"schemaVersion": 39`, `"schemaVersion": "39"`, "schemaVersion"},
		{`"multi": true`, `"multi": "true"`, "templating.list[1].multi"},
		{`"type": "stat"`, `"type": "stat", "span": 4`, "panels[0]"},
		{`"w": 4`, `"w": "4"`, "panels[0].gridPos.w"},
		{`"expr"`, `"expression"`, "panels[0].targets[0]"},
		{`"refId": "A"`, `"refId": 1`, "panels[0].targets[0].refId"},
		{`"unit": "short"`, `"units": "short"`, "panels[0].fieldConfig: defaults"},
		{`"color": "red"`, `"colour": "red"`, "panels[0].fieldConfig: defaults.thresholds.steps"},
		{`"graphMode"`, `"graphmode"`, "panels[0].options"},
		{`"showLegend": true`, `"showLegend": 1`, "panels[6].options.legend.showLegend"},
		{`"calcs": []`, `"calcs": [], "sort": 1`, "panels[6].options.legend"},
	} {
		require.Contains(t, string(raw), c.here)
		err := strict([]byte(strings.Replace(string(raw), c.here, c.wrong, 1)))
		require.ErrorContains(t, err, c.says, "%s in place of %s", c.wrong, c.here)
	}
}
